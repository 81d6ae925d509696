"""`aveyb-train`: vocabulary, pre-training, mining, fine-tuning, distillation, heads, export.

All logic is in `training`.
"""

from __future__ import annotations

import click

from aveyb_retrieval.cli.common import CONTEXT, Commands
from aveyb_retrieval.cli.fine_tuning import contrastive, distill, export, funnel, mine
from aveyb_retrieval.cli.heads import answer, classify, tag
from aveyb_retrieval.cli.pretraining import clm, mlm, tokenizer
from aveyb_retrieval.cli.sweep import sweep


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(package_name="aveyb-retrieval")
def main() -> None:
    """Train vocabularies and models: tokenizer, mlm, clm, mine, contrastive, distill, classify, tag, answer.

    sweep tries learning rates and seeds; funnel and export make a trained model faster.
    """


for command in (tokenizer, mlm, clm, mine, contrastive, distill, funnel, classify, tag, answer, sweep, export):
    main.add_command(command)


if __name__ == "__main__":
    main()
