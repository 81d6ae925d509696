from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.texts import train_vocabulary
from tests.refusals import Refusal, refusals

from .conftest import SENTENCES


def test_size_and_round_trip(tokenizer: AveyBTokenizer) -> None:
    assert tokenizer.vocab_size == 360
    text = f"{SENTENCES[7]} — and naïve 🙂 bytes it never saw"
    ids, _ = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text


def test_frequent_words_become_single_tokens(tokenizer: AveyBTokenizer) -> None:
    assert len(tokenizer.encode(" before noon")[0]) == 2


def test_the_same_text_gives_the_same_vocabulary() -> None:
    assert train_vocabulary(SENTENCES, 300).ranks == train_vocabulary(iter(SENTENCES), 300).ranks


def test_auto_tokenizer_agrees(tokenizer: AveyBTokenizer, tmp_path) -> None:
    from transformers import AutoTokenizer

    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*SENTENCES, "unseen: 12345 xyz\n\n", "[MASK]"]:
        assert theirs(text)["input_ids"] == tokenizer.encode(text)[0].tolist()


@refusals(
    {
        ConfigError: {
            "vocab_size is 261": lambda: train_vocabulary(SENTENCES, 261),
        },
        InputError: {
            "give more text or ask for fewer": lambda: train_vocabulary(["only this"], 300),
        },
    }
)
def test_bad_sizes_are_refused(refused: Refusal) -> None:
    refused()
