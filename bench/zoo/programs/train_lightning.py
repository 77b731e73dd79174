"""A script that Lightning's own launcher starts once for each device."""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from steps import step_of
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        """The loss; the fault strikes here."""
        step_of(self.global_rank, number)
        return self.layer(batch[0]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    torch.set_num_threads(1)
    samples = DataLoader(TensorDataset(torch.ones(60, 4)), batch_size=2)
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["ZOO_WORLD"]),
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Model(), samples)
