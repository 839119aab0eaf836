// Starts Swagger UI on this service's OpenAPI document. FastAPI's own page does so by a script inside the page, which
// the Content-Security-Policy refuses.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");

function followScheme() {
  document.documentElement.classList.toggle("dark-mode", dark.matches);
}

followScheme();
dark.addEventListener("change", followScheme);
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  validatorUrl: null, // by default the document is sent to a service elsewhere
});
