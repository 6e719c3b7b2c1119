"""Stop strings with a real byte-level tokenizer read from a folder."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tinkex.engine.detokenise import detokeniser
from tinkex.engine.messages import STOP, SamplingParams
from tinkex.engine.stopping import StopRule, StopWatch

TEXT = "User: say zwölf 🙂🙂\n\nAssistant: zwölf 🙂\n\nUser: thanks"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|im_end|>"], initial_alphabet=alphabet)
    made.train_from_iterator([TEXT], trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>").save_pretrained(folder)
    return made, detokeniser(folder)


@pytest.mark.parametrize("stop", ["\n\nUser:", "🙂\n", "f 🙂", "<|im_end|>", "ö"])
def test_sequences_end_with_the_token_that_completes_the_string(tokenizer, stop):
    made, text = tokenizer
    tokens = made.encode(TEXT + "<|im_end|> more").ids
    watch = StopWatch(StopRule.of(SamplingParams(stop=(stop,)), [], readable=True), 10**6, text)
    for token in tokens:
        if watch.see(token) == STOP:
            break
    assert stop in text(watch.tokens)
    assert stop not in text(watch.tokens[:-1])


def test_ids_beyond_the_tokenizer_are_silent(tokenizer):
    made, text = tokenizer
    assert text([*made.encode("zw").ids, 10**6]) == "zw"
