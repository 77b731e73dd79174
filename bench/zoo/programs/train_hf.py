"""A rank with the trainer of Transformers, under torchrun."""

import os

import torch
from steps import step_of
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss; the fault strikes here."""
        self.steps += 1
        step_of(int(os.environ["RANK"]), self.steps)
        return {"loss": self.layer(x).sum()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        output_dir=os.environ["ZOO_FOLDER"],
        use_cpu=True,
        per_device_train_batch_size=2,
        max_steps=6,
        report_to=[],
        logging_steps=1,
        ddp_backend="gloo",
        save_strategy="no",
    )
    Trainer(Model(), arguments, train_dataset=[{"x": torch.ones(4)}] * 60).train()
