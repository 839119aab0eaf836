"""Rebuilds a silo with its next shard, and carries its model over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from client_service.compiled.publication import REFRESH
from client_service.event_log.log_store import MergeResult
from client_service.event_log.service import SiloLog
from client_service.federation.best_model import load_model_or_none, with_head
from client_service.federation.client_run import RebuildResult, RefreshResult, Silo, basis_folder
from client_service.model_store.model_files import ModelHead, load_head, load_rows, load_tensors
from client_service.model_store.model_server import FrozenModel
from client_service.model_store.model_versions import next_number, save_version
from client_service.model_store.refitting import load_model_content
from client_service.refresh.cleanup import delete_outdated_files
from client_service.runtime.interruption import Interrupt, Interrupted
from client_service.runtime.logs import LOGGER, describe_failure, describe_place
from client_service.runtime.memory import return_free_memory
from client_service.serving.model_server import ModelServer
from client_service.settings import ClientSettings
from client_service.sums.storage import load_basis
from client_service.tasks.task import EventIntake, RunContext, Task, TaskShard, Training
from shared.errors import DataError, FederationError

CHANGED = 0.1  # share of the training pairs by which their number may differ before validation chooses anew
SEED = 0


@dataclass(frozen=True)
class RenewedModel:
    """Frozen model that is not kept yet, with its head.

    value: the measure by which validation chooses.
    """

    served: FrozenModel
    head: ModelHead
    value: float = 0.0


@dataclass(frozen=True)
class ModelRenewal:
    """Renewal of a silo's kept model for a changed shard."""

    settings: ClientSettings
    task: Task[Any, Any]
    shard: TaskShard
    device: torch.device
    interrupt: Interrupt

    def renew(self, *, erased: bool) -> RenewedModel | None:
        """Computes the model that replaces the served one. Slow.

        None if no model is kept, if the kept one fits shard and item texts, or if none could be computed.

        erased: interactions of a user are gone from the shard, or may be. Then nothing that was learnt from them is
        carried over where that can be avoided, and validation chooses whatever the shard's size.
        """
        before = load_head(self.settings.models_directory)
        if before is None or self.is_current(before):
            return None
        candidates = [one for one in self._candidates(before, erased=erased) if one is not None]
        if len(candidates) > 1:  # judging takes a third as long as computing one
            candidates = [max((self._judge(one) for one in candidates), key=self._preference)]
        return self._fit_score_meaning(candidates[0]) if candidates else None

    def is_current(self, head: ModelHead) -> bool:
        """Tells whether a kept model was made of this shard and its item texts."""
        return head.shard == self.shard.digest and head.fits_text(self.task.text_digest(self.shard))

    def transfer(self, before: ModelHead, after: ModelHead) -> RenewedModel | None:
        """Transfers a kept model of another shard to this one, by shared ids, as `after`.

        None if that is not possible.
        """
        training = self._rebuild(after)
        found = self._carry(before, training, after)
        return None if found is None else self._fit_score_meaning(self._judge(found))

    def keep(self, renewed: RenewedModel) -> FrozenModel:
        """Saves the model as the served one, also after a restart.

        `save_version` says which other versions stay.
        """
        settings, rows = self.settings, self.task.rows(self.shard)
        refitted = None
        if settings.fit_everything:  # it was judged without held-out data, and answers with them
            refit = self.task.refit(self.shard, settings.models_directory, self.device)
            refitted = refit(renewed.head, dict(renewed.served.model.named_parameters()))
        kept = save_version(settings.models_directory, renewed.served.model, renewed.head, rows, settings.kept_models)
        LOGGER.info("model_renewed", model=kept.version, carried=kept.carried)
        return with_head(renewed.served if refitted is None else refitted, kept)

    def _candidates(self, before: ModelHead, *, erased: bool) -> Iterator[RenewedModel | None]:
        pairs, folder = self.task.count(self.shard).edges, self.settings.models_directory
        shard, text_changed = self.shard, not before.fits_text(self.task.text_digest(self.shard))
        of_shard = {"shard": shard.digest, "text": self.task.text_digest(shard)}
        fresh = {**of_shard, "run": REFRESH, "number": 0, "values": {}, "carried": False}
        head = before.model_copy(update={**fresh, "round": next_number(folder)})
        if before.start is None and not self.task.fits_at_start:
            yield self._carry(before, self._rebuild(head), head)
            return
        anew = erased or text_changed or abs(pairs - before.chosen_for) > CHANGED * before.chosen_for
        training = self._begin_fresh(before) if anew else self._rebuild(head)
        sums = {"basis": training.basis, "content": training.content}
        chosen = {"start": training.start, "recipe": training.recipe, "chosen_for": pairs, **sums}
        yield self._at_start(training, head.model_copy(update=chosen) if anew else head)
        if text_changed:  # choices for other texts may harm
            head = head.model_copy(update=chosen)
        if before.is_trained and not erased:
            yield self._carry(before, self._rebuild(head) if anew else training, head)

    def _at_start(self, training: Training, head: ModelHead) -> RenewedModel:
        training.initialise(SEED)
        return RenewedModel(self.task.freeze(head.version, training), head)

    def _carry(self, before: ModelHead, training: Training, head: ModelHead) -> RenewedModel | None:
        """Carries the kept parameters over to this shard.

        None if the kept model, or the ids of its shard's rows, cannot be read, or are of another kind.
        """
        folder = self.settings.models_directory
        try:
            tensors, rows = load_tensors(folder, before), load_rows(folder, before.shard)
        except DataError as error:
            LOGGER.warning("model_not_carried", reason=str(error))
            return None
        if tensors is None or rows is None or not training.transfer(tensors, rows):
            return None
        carried = head.model_copy(update={"carried": True})
        return RenewedModel(self.task.freeze(carried.version, training), carried)

    def _rebuild(self, head: ModelHead) -> Training:
        settings = self.settings
        training: Training = self.task.rebuild(head, self.shard, settings.models_directory, self.device)
        return training

    def _begin_fresh(self, before: ModelHead) -> Training:
        """Starts a model as the first round of a run would."""
        settings = self.settings
        basis = load_basis(basis_folder(settings), before.basis) if before.basis else None
        folder, cache = settings.models_directory, settings.cache_directory
        content = load_model_content(folder, before)
        place = RunContext(settings.name, REFRESH, SEED, before.method, folder, before.kind, cache, basis, content)
        training: Training = self.task.begin(place, self.shard, self.device, self.interrupt)[0]
        return training

    def _judge(self, candidate: RenewedModel) -> RenewedModel:
        """Measures a candidate on validation items."""
        measures = self.task.judge(self.shard, candidate.served, self.interrupt)
        head = candidate.head.model_copy(update={"values": dict(measures.values)})
        return RenewedModel(candidate.served, head, measures.primary_value)

    def _preference(self, judged: RenewedModel) -> tuple[float, bool]:
        """Returns a candidate's sort key: its measure, at a tie the fresh start."""
        return judged.value, not judged.head.carried

    def _fit_score_meaning(self, best: RenewedModel) -> RenewedModel:
        """Adds the meaning of the model's scores."""
        relevance = self.task.meaning_of_scores(self.shard, best.served, self.interrupt)
        return RenewedModel(best.served, best.head.model_copy(update={"relevance": relevance}))


Publish = Callable[[ModelServer], None]


def rebuild_silo(silo: Silo, feedback: SiloLog[Any, Any], publish: Publish) -> RebuildResult:
    """Absorbs the event log, computes the new shard's model, writes both, and switches answers. Slow.

    Raises DataError, and changes nothing, where the shard cannot be written or would have no users.
    """
    settings, events = silo.settings, _events_of(silo)
    with events.hold(settings.shard) as before:
        absorbed = events.merge(settings, before, feedback.store)
        shard = events.place(settings, absorbed.after)
        new, old = ((one.lists_digest, silo.task.text_digest(one)) for one in (shard, silo.shard))
        if new != old:
            with silo.answers.changing:
                after = _renew_silo(silo, shard, absorbed, feedback, publish)
        else:
            save_absorbed(silo, absorbed)
            after = silo
    return RebuildResult(after, partial(_finish, after, feedback, absorbed, changed=new != old))


def _events_of(silo: Silo) -> EventIntake[Any]:
    events = silo.task.events
    assert events is not None, "only a silo that takes events is refreshed"
    return events


def _renew_silo(
    silo: Silo, shard: Any, absorbed: MergeResult[Any], feedback: SiloLog[Any, Any], publish: Publish
) -> Silo:
    """Computes or finds the model of the new shard, and switches the silo to both.

    Until then answers come from memory. A model of the shard exists already where an earlier refresh was interrupted.
    If another process changed the shard, it may have erased a user.
    """
    settings, known = silo.settings, silo.shard.digest
    erased = absorbed.forgotten > 0 or absorbed.before.digest != known
    if shard.digest != known:
        feedback.store.add_stale_shards(known, shard.digest)
    renewal = ModelRenewal(settings, silo.task, shard, silo.device, silo.interrupt)
    folder, everything = settings.models_directory, settings.fit_everything
    served = load_model_or_none(silo.task, shard, folder, silo.device, fit_everything=everything)
    renewed = _renew_model(renewal, erased=erased) if served is None else None
    save_absorbed(silo, absorbed)
    if renewed is not None:
        served = renewal.keep(renewed)
    delete_outdated_files(settings, feedback.store, shard.digest, erased=erased)
    return _move_silo(silo, shard, served, feedback, publish)


def _renew_model(renewal: ModelRenewal, *, erased: bool) -> RenewedModel | None:
    """Computes the new shard's model; after an erasure None if that fails.

    An erasure does not wait for a model: popular items are served until a run has made one.
    """
    try:
        return renewal.renew(erased=erased)
    except (FederationError, OSError, Interrupted):
        raise
    except Exception as error:
        if not erased:
            raise
        LOGGER.error("model_not_renewed", reason=describe_failure(error), at=describe_place(error))
        return None


def save_absorbed(silo: Silo, absorbed: MergeResult[Any]) -> None:
    """Writes the next shard, where it is another one."""
    if absorbed.after is not absorbed.before:
        _events_of(silo).save(silo.settings.shard, absorbed.after)


def _finish(silo: Silo, feedback: SiloLog[Any, Any], absorbed: MergeResult[Any], *, changed: bool) -> RefreshResult:
    digest, store = silo.shard.digest, feedback.store
    feedback.delete_absorbed(absorbed.batch, silo.shard.lists_digest, absorbed.kept)
    delete_outdated_files(silo.settings, store, digest, erased=store.erasures.has_open())
    erased = store.erasures.complete()
    served = silo.answers.served
    version = None if served is None else served.version
    return RefreshResult(changed, version, erased, absorbed.waiting, absorbed.dropped)


def _move_silo(
    silo: Silo, shard: Any, served: FrozenModel | None, feedback: SiloLog[Any, Any], publish: Publish
) -> Silo:
    """Switches answers, guard and anchors to the new shard.

    Steps that can fail come before the switch.
    """
    settings, old = silo.settings, silo.answers
    new, overlay, failure = _events_of(silo).reopen(settings, shard)
    new.changing = old.changing
    if silo.guard is not None:
        silo.guard.switch_shard(shard.digest)
    new.served = served
    if (error := failure()) is not None:
        # The server would still answer from data that the shard has erased: the refresh is tried again.
        raise error
    old.close()  # its lists stay in memory, and no more of them are written
    feedback.switch_overlay(overlay, lambda: publish(new))
    return_free_memory()
    return replace(silo, shard=shard, answers=new, anchors=silo.anchors.for_shard(shard.digest))
