"""The app that Flower packs; its code is in the installed package `lpsfed`."""
