"""Wrong use of every command: one line on stderr, the exit code, and no file is changed."""

import json
import shlex

import numpy as np
import pytest
from helpers.command_line import run_here

LONG = "x" * 5000

# A row: the command line, its exit code, and a part of the message. {L} stands for a long word, and
# {N} for a name that is too long for a file.
TABLE = r"""
generate x --temperature warm | 2 | --temperature: invalid float value: 'warm'
generate x --temperature -1 | 2 | --temperature is -1.0; it must be a number, at least 0
generate x --top-p 7 | 2 | --top-p is 7
generate x -n 0 | 2 | --max-new-tokens is 0
generate x --greedy --temperature 0.9 | 2 | --temperature: not allowed with argument --greedy
generate x --dtype int8 | 2 | --dtype: invalid choice: 'int8'
generate x --exact --dtype float32 | 2 | --exact and --dtype float32 contradict each other
generate x --exact --weights int8 | 2 | --exact and --weights contradict each other
generate x --threads 0 | 2 | --threads is 0; it must be at least 1
generate x --special maybe | 2 | --special: invalid choice: 'maybe'
generate x --choice | 2 | --choice: expected one argument
generate x --regex 'a(?<=b)' | 2 | not supported
generate x --stop-id 4096 | 2 | --stop-id: id 4096
generate x --logit-bias 5 | 2 | --logit-bias is '5'; it must be ID=X, as in 50256=-5
generate x --logit-bias 9999=1 | 2 | --logit-bias: id 9999
generate x --choice a --regex b | 2 | --choice and --regex contradict each other: give one
generate x --num-beams 3 --temperature 0.5 | 2 | --num-beams 3 and --temperature 0.5 contradict
generate x --bad-word <|endoftext|> | 2 | give --ignore-eos, or -100 for its id in --logit-bias
generate x --greedy --top-p 0.9 | 2 | --top-p is 0.9, which has no effect with --greedy
generate x --length-penalty 2 | 2 | --length-penalty is 2.0, which has no effect without beam
generate x --logprobs 2 | 2 | --logprobs and --prompt-logprobs need --json
generate x - | 2 | unrecognized argument '-'; quote a text
generate x --tempreature 1 | 2 | unrecognized option '--tempreature'; did you mean '--temperature'?
generate x --max_new_tokens=3 | 2 | option '--max_new_tokens=3'; did you mean '--max-new-tokens'?
generate x --{L} | 2 | x…x
generate - < utf16.txt | 2 | standard input is UTF-16 text, not UTF-8; convert
generate - < latin1.txt | 2 | standard input is not UTF-8 text: byte 0xff at offset 1
generate - < long.txt | 2 | tokens, and this model's maximum context length is 512 tokens
generate x --model ./none | 1 | no folder ./none
generate x --model '' | 2 | --model is ''; it must be a non-empty text
generate x --draft '' | 2 | --draft is ''; it must be a non-empty text
generate x --draft none.safetensors | 1 | none.safetensors is missing
chat --system x | 2 | bundled has no chat template; a system message needs one
chat --chat-template none.jinja | 1 | cannot read none.jinja: No such file
chat hi | 2 | unrecognized argument 'hi'; to select a model, give --model hi
chat --num-beams 3 | 2 | unrecognized option '--num-beams'
batch p.txt | 2 | the following arguments are required: --out
batch p.txt --out o.txt | 2 | use one of .jsonl, .csv, .parquet
batch p.txt --out none/o.jsonl | 2 | the folder none does not exist
batch p.txt --out there.jsonl | 2 | there.jsonl exists already; give --force to overwrite it
batch there.jsonl --out there.jsonl --force | 2 | are the same file, there.jsonl
batch p.txt --out folder.jsonl --force | 2 | folder.jsonl is not a file; choose another
batch p.txt --out {N}.jsonl | 1 | : File name too long
batch none.txt --out o.jsonl | 2 | cannot read none.txt: No such file
batch p.csv --out o.jsonl | 2 | p.csv has no column 'prompt'; set --field to one of its columns
batch no.json --out o.jsonl | 2 | no.json is not text; use .txt, .jsonl
batch p.txt --out o.jsonl --workers 2 | 2 | --workers needs --ray
tokenize x --ids --count | 2 | --count: not allowed with argument --ids
decode --ids 5 | 2 | unrecognized option '--ids' (try
tokenize x --model folder.jsonl | 1 | has no vocabulary
tokenize x --model pickle/config.json | 1 | has no "model" with a vocabulary; name the folder
tokenize x --model no.json | 1 | no.json
decode 12 x | 2 | 'x' is not an id
decode [1.5] | 2 | '[1.5]' is not an id; ids are integers from 0
decode '' | 2 | there are no ids
encode p.txt x.txt | 2 | x.txt: the suffix selects the format; use one of .npz, .npy, .bin
encode p.txt p.txt --force o.bin | 2 | 'o.bin'; give all arguments before the options
train-tokenizer p --vocab-sise 300 --out o | 2 | '--vocab-sise'; did you mean '--vocab-size'?
encode p.txt p.txt/o.bin | 2 | p.txt is a file, not a folder
info --model bundled | 2 | option '--model'
encode none.txt o.bin | 2 | none.txt does not exist; give files, folders or patterns
encode *.doc o.bin | 2 | no file matches the pattern
encode nothing o.bin | 2 | nothing has no files
encode empty.txt o.bin | 2 | the files have no text
encode utf16.txt o.bin | 2 | utf16.txt is UTF-16 text, not UTF-8; convert
encode latin1.txt o.bin | 2 | latin1.txt, document 1 is not UTF-8 text: byte 0xff at offset 1
encode p.txt o.npz --combine 0 | 2 | --combine is 0
encode p.txt o.bin --combine 9 | 2 | --combine needs an .npz output, not o.bin
encode p.txt o.bin --processes -1 | 2 | --processes is -1; it must be an integer from 1 to 1000
encode p.txt o.bin --model folder.bin | 1 | has no vocabulary
train-tokenizer p.txt --vocab-size 256 --out o | 2 | size is 256; the 256 bytes and the special
train-tokenizer p.txt --vocab-size 300 --out o --pattern no | 2 | --pattern is 'no'; it must be gpt2
train-tokenizer p.txt --vocab-size 300 --out '' | 2 | '.' is no name of a folder; name a new folder
train-tokenizer p.txt --vocab-size 300 --out p.txt | 2 | p.txt already exists; name a new
train-tokenizer p.txt --vocab-size 300 --out p.txt/x | 1 | p.txt/x: Not a directory
train-tokenizer p.txt --vocab-size 300 --out link | 2 | link already exists
train-tokenizer p.txt --vocab-size 300 --out a_model | 2 | a_model already exists
train ids.bin o --n-embd 33 --n-head 2 | 2 | --n-embd is 33; it must be a multiple of n_head, 2
train ids.bin o --max-steps 0 | 2 | --max-steps is 0; it must be an integer, at least 1
train ids.bin o --save-steps 0 | 2 | --save-steps is 0; it must be at least 1
train ids.bin o --n-positions 100000 | 2 | 000 tokens need more; set a smaller --block-size
train ids.bin o --from bundled --n-layer 2 | 2 | --n-layer cannot be combined with --from
train ids.bin o --eval-steps 5 | 2 | --eval-steps has no effect without --eval-corpus
train ids.bin o --from '' | 1 | the model's name is empty
train ids.bin nothing/../a_model | 2 | already exists
train ids.bin bundled | 2 | bundled is the name of a model
train p.txt o | 2 | p.txt is not a corpus from gpt2np encode
train empty.bin o | 2 | is not a corpus from gpt2np encode: cannot mmap an empty file
train none.npy o | 2 | none.npy has 0 ids
train foreign.npy o | 2 | ids from 5000 to 5000, but the vocabulary has 0 to 4095
score p.txt --out there.jsonl | 2 | there.jsonl exists already; give --force to overwrite it
score p.txt --force | 2 | --force and --ray need --out
score p.txt --out {L} | 1 | x…x
score p.txt --stride 0 | 2 | --stride is 0
score p.txt --tokens | 2 | --tokens, --force and --ray need --out
score p.txt --out o.jsonl --workers 2 | 2 | --workers needs --ray
score p.txt --out o.jsonl --ray --workers 0 | 2 | --workers is 0; it must be an integer, at least 1
trace x --top 0 | 2 | --top is 0
explain x | 2 | the following arguments are required: -o/--output
explain x -o x.png | 2 | x.png: the suffix selects the format; use one of .html, .htm
explain x -o none/x.html | 2 | the folder none does not exist
explain x -o there.html | 2 | there.html exists already; give --force to overwrite it
explain -o x.html < p65.txt | 2 | and a page holds at most 64
parity record there.safetensors | 2 | there.safetensors exists already; give --force to overwrite it
parity check none there.bin | 1 | cannot read none: No such file
parity check there.safetensors no.json | 1 | has no reference arrays (
info none/at/all | 1 | none/at/all
convert bundled a_model | 2 | already exists; name a new or an empty folder
convert bundled openai-community/gpt2 | 2 | openai-community/gpt2 is the name of a model
convert bundled p.txt/b | 1 | p.txt/b: Not a directory
convert bundled '' | 2 | '.' is no name of a folder; name a new folder
convert pickle o | 1 | a pickle
serve --model a --model b --tokenizer c | 2 | --tokenizer is for one model; give one --model
serve --api-key k --no-api-key | 2 | --api-key and --no-api-key contradict each other; give one
serve --model bundled --model bundled | 2 | bundled
serve --model ./none | 1 | no folder ./none
serve --api-key '' | 2 | --api-key is ''; it must be a non-empty text
bench bundled other | 2 | unrecognized argument
bench bundled --processes 0 | 2 | --processes is 0; it must be auto or an integer, at least 1
serve --host 0.0.0.0 | 2 | --host 0.0.0.0 can serve other machines; set --api-key
""".strip().splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    for name in ("folder.jsonl", "folder.bin", "nothing", "a_model", "pickle"):
        (folder / name).mkdir()
    texts = {"p.txt": "one two\n", "p.csv": "a\n", "empty.txt": "", "there.jsonl": '"a"\n'}
    texts |= {"long.txt": "word " * 600, "p65.txt": "fox " * 65, "no.json": "{", "text.npy": "x"}
    texts |= {f"there.{kind}": "kept" for kind in ("bin", "npz", "html", "safetensors")}
    texts |= {"empty.bin": "", "pickle/config.json": "{}"}
    texts |= {"a_model/model.safetensors": "", "pickle/pytorch_model.bin": "x"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "utf16.txt").write_text("one two", encoding="utf-16")
    (folder / "latin1.txt").write_bytes(b"a\xff")
    (folder / "ids.bin").write_bytes(bytes(1000))
    np.save(folder / "foreign.npy", np.full(1000, 5000))
    np.save(folder / "none.npy", np.zeros(0, int))
    (folder / "link").symlink_to("nowhere")
    return folder


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("row", TABLE)
def test_wrong_use_is_one_line(folder, row):
    line, code, message = row.split(" | ")
    words = [w.replace("{L}", LONG).replace("{N}", "x" * 256) for w in shlex.split(line)]
    before, stdin = contents(folder), b""
    if words[-2:-1] == ["<"]:
        *words, _, name = words
        stdin = (folder / name).read_bytes()
    result = run_here(*words, stdin=stdin, folder=folder, GPT2NP_MODEL="bundled")
    last = result.stderr.splitlines()[-1]
    program = " ".join(["gpt2np", *words[: 2 if words[0] == "parity" else 1]])
    assert last.startswith((f"{program}: error: ", "gpt2np parity: error: "))
    assert message in last.replace("...", "…") and len(last) < 700
    assert "Traceback" not in result.stderr and "[Errno" not in result.stderr
    assert (result.returncode, result.stdout) == (int(code), "")
    assert contents(folder) == before


def test_train_reads_the_corpus_before_it_tells_about_the_warm_up(folder):
    options = ["--max-steps", "5", "--model", "bundled"]
    result = run_here("train", "none.bin", "o", *options, folder=folder)
    assert result.returncode == 1 and "warm-up" not in result.stderr


def test_texts_that_parity_cannot_compare(tmp_path):
    record = "parity record g.safetensors --prompt ab --points logits --model bundled"
    assert run_here(*record.split(), folder=tmp_path).returncode == 0
    wrong = ([], None, "x", [1.5], [True], [-1], [10**6])
    for content, message in (
        ({}, "has no token ids"),
        ({"none": [1]}, "no prompt 'none'"),
        *(({"prompt0": ids}, "at least one token id") for ids in wrong),
    ):
        (tmp_path / "ids.json").write_text(json.dumps(content))
        result = run_here("parity", "check", "g.safetensors", "ids.json", folder=tmp_path)
        assert (result.returncode, result.stdout) == (2, "")
        assert message in result.stderr.splitlines()[-1]
