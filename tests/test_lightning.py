"""The Lightning callback inside Lightning's own Trainer, against closed forms and runs that were never interrupted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset

from headway.errors import HeadwayError

lightning = pytest.importorskip("lightning")
callbacks = pytest.importorskip("lightning.pytorch.callbacks")
from headway.integrations.lightning import MomentumDecayCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:lightning.*", "ignore::FutureWarning:lightning.*", "ignore::DeprecationWarning:lightning.*"
)
LR, BATCHES, ACCUMULATE, EPOCHS = 1e-2, 7, 2, 3
TOTAL = 4 * EPOCHS  # each epoch's last step has one batch


class Module(lightning.LightningModule):
    """Regression on noise that depends on the step alone, so that a resumed run can be the same run."""

    def __init__(self, scheduler=None):
        super().__init__()
        self.layer, self.scheduler = nn.Linear(3, 2), scheduler

    def training_step(self, batch, _):
        noise = torch.randn(batch.shape, generator=torch.Generator().manual_seed(self.global_step))
        loss = self.layer(batch + noise).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=LR)
        if self.scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.scheduler(optimizer), "monitor": "loss"}}

    def predict_step(self, batch):
        return self.layer(batch)


class Rates(callbacks.Callback):
    """Writes down (lr, beta1) with which each step is made."""

    def __init__(self):
        self.seen = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        group = optimizer.param_groups[0]
        self.seen.append((group["lr"], group["betas"][0]))


def data():
    return DataLoader(torch.ones(4 * BATCHES, 3), batch_size=4)


def trainer(folder, *extra, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    chosen = {"max_epochs": EPOCHS, "accumulate_grad_batches": ACCUMULATE, "enable_checkpointing": False, **options}
    return lightning.Trainer(default_root_dir=folder, callbacks=list(extra), **quiet, **chosen)


def module(scheduler=None):
    torch.manual_seed(0)
    return Module(scheduler)


def expected(step, warmup=0, lr=lambda step: LR):
    tau = max(0.0, (step - warmup) / (TOTAL - warmup))
    return lr(step) * (1 - 0.9 * tau), 0.9 * (1 - tau) / (1 - 0.9 * tau)


def warmup_scheduler(optimizer):
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))


def test_every_step_has_the_rates_of_the_closed_form(tmp_path):
    rates, momentum = Rates(), MomentumDecayCallback(warmup_steps=2)
    trainer(tmp_path, momentum, rates).fit(module(), data())
    assert rates.seen == [pytest.approx(expected(i, warmup=2), rel=1e-12) for i in range(TOTAL)]
    assert (momentum.momentum.steps, momentum.momentum.total_steps) == (TOTAL, TOTAL)


def test_a_scheduler_handed_over_drives_the_rate_once_a_step(tmp_path):
    rates, momentum = Rates(), MomentumDecayCallback(warmup_steps=4, lr_scheduler=warmup_scheduler)
    trainer(tmp_path, momentum, rates).fit(module(), data())
    want = [expected(i, warmup=4, lr=lambda step: LR * min(1.0, (step + 1) / 4)) for i in range(TOTAL)]
    assert rates.seen == [pytest.approx(pair, rel=1e-12) for pair in want]


class Save(callbacks.Callback):
    """Saves at the end of a batch: before the momentum decay has stepped if it comes first among the callbacks."""

    def __init__(self, path, batch):
        self.path, self.batch = path, batch

    def on_train_batch_end(self, trainer, *_):
        if trainer.fit_loop.total_batch_idx + 1 == self.batch:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("scheduler", [None, warmup_scheduler], ids=["alone", "scheduler"])
@pytest.mark.parametrize("first", [True, False], ids=["saved before the decay", "saved after the decay"])
@pytest.mark.parametrize(("batch", "done"), [(6, 3), (14, 8)], ids=["in an epoch", "after an epoch"])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(batch, done, first, scheduler, tmp_path):
    def run(*others, **options):
        network, rates, momentum = module(), Rates(), MomentumDecayCallback(warmup_steps=2, lr_scheduler=scheduler)
        extra = [*others, momentum, rates] if first else [momentum, rates, *others]
        trainer(tmp_path, *extra).fit(network, data(), **options)
        return network, rates

    path = tmp_path / "state.ckpt"
    whole, whole_rates = run(Save(path, batch))
    resumed, resumed_rates = run(ckpt_path=path, weights_only=True)
    assert resumed_rates.seen == whole_rates.seen[done:]
    assert len(resumed_rates.seen) == TOTAL - done
    for ours, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_resuming_for_another_total_is_refused_unless_the_total_was_given(tmp_path):
    path = tmp_path / "state.ckpt"
    trainer(tmp_path, MomentumDecayCallback(), Save(path, BATCHES)).fit(module(), data())
    with pytest.raises(HeadwayError, match="saved with total_steps=12 and built with total_steps=20"):
        trainer(tmp_path, MomentumDecayCallback(), max_epochs=5).fit(module(), data(), ckpt_path=path)
    momentum = MomentumDecayCallback(total_steps=TOTAL)
    trainer(tmp_path, momentum, max_epochs=5).fit(module(), data(), ckpt_path=path)
    assert momentum.momentum.steps == 20


def test_going_on_without_the_decays_state_is_refused(tmp_path):
    path = tmp_path / "state.ckpt"
    trainer(tmp_path, Save(path, BATCHES)).fit(module(), data())
    with pytest.raises(HeadwayError, match="goes on at step 4 without the state of its momentum decay"):
        trainer(tmp_path, MomentumDecayCallback()).fit(module(), data(), ckpt_path=path)
    again = trainer(tmp_path, MomentumDecayCallback(), max_epochs=1)
    again.fit(module(), data())
    again.fit_loop.max_epochs = 2
    with pytest.raises(HeadwayError, match="goes on at step 4"):
        again.fit(module(), data())


def test_a_checkpoint_read_for_predictions_is_not_what_training_goes_on_from(tmp_path):
    path, momentum = tmp_path / "state.ckpt", MomentumDecayCallback()
    trainer(tmp_path, momentum, Save(path, BATCHES)).fit(module(), data())
    again, rates = MomentumDecayCallback(), Rates()
    fresh = trainer(tmp_path, again, rates)
    fresh.predict(module(), data(), ckpt_path=path, weights_only=True)
    fresh.fit(module(), data())
    assert rates.seen == [pytest.approx(expected(i)) for i in range(TOTAL)]


@pytest.mark.parametrize("scheduler", [warmup_scheduler, ReduceLROnPlateau], ids=["LambdaLR", "ReduceLROnPlateau"])
def test_lightnings_scheduler_and_ours_are_two_owners(scheduler, tmp_path):
    name = "ReduceLROnPlateau" if scheduler is ReduceLROnPlateau else "LambdaLR"
    with pytest.raises(
        HeadwayError, match=f"Two owners .* the {name} of Module.configure_optimizers.*lr_scheduler=lambda"
    ):
        trainer(tmp_path, MomentumDecayCallback()).fit(module(scheduler), data())


def test_another_callback_that_writes_the_rate_is_seen(tmp_path):
    class Halve(callbacks.Callback):
        def on_train_batch_start(self, trainer, *_):
            trainer.optimizers[0].param_groups[0]["lr"] /= 2

    with pytest.raises(HeadwayError, match="was changed since the last"):
        trainer(tmp_path, MomentumDecayCallback(), Halve()).fit(module(), data())


def test_manual_optimisation_is_refused(tmp_path):
    manual = module()
    manual.automatic_optimization = False
    with pytest.raises(HeadwayError, match="optimises by hand"):
        trainer(tmp_path, MomentumDecayCallback(), accumulate_grad_batches=1).fit(manual, data())


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(3)


@pytest.mark.parametrize("limits", [{"max_epochs": -1}, {"max_epochs": 2}], ids=["no end", "epochs of unknown length"])
def test_training_without_an_end_needs_total_steps(limits, tmp_path):
    endless = DataLoader(Endless(), batch_size=4)
    with pytest.raises(HeadwayError, match="needs to know when training ends"):
        trainer(tmp_path, MomentumDecayCallback(), **limits).fit(module(), endless)
    rates = Rates()
    trainer(tmp_path, MomentumDecayCallback(TOTAL), rates, max_epochs=-1, max_steps=3).fit(module(), endless)
    assert rates.seen == [pytest.approx(expected(i)) for i in range(3)]
