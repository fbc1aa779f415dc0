"""Continue each prompt of a file.

FILE has a prompt per line or row: .txt, .jsonl (each line is a string or an
object), .csv, .tsv or .parquet. An object can set options for its prompt, as
{"prompt": "...", "seed": 5, "max_new_tokens": 9} does. Other fields and columns
are copied to the results, which go to --out in the prompts' order: one row per
prompt. With --samples, the field "alternatives" holds all texts but the first.
Each result has a seed, with which 'gpt2np generate' writes the same text.

Run an interrupted command again to resume, also after you have added prompts at
the end of the file. Until all prompts are done, the results are in a folder
with the suffix .partial, such as texts.jsonl.partial/.
"""

import argparse
from pathlib import Path

from gpt2np.cli.generation_options import add_generation_arguments, generation_options
from gpt2np.cli.jobs import (
    add_ray_arguments,
    add_rows_arguments,
    model_source,
    ray_cluster,
    report_rows,
    running_job,
)
from gpt2np.cli.model_options import add_model_arguments, load_model
from gpt2np.cli.output import print_stderr
from gpt2np.cli.text_input import add_special_argument, spool_stdin
from gpt2np.errors import GPT2NPError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "gpt2np batch FILE --out FILE [options]"
    file = "Prompts (.txt, .jsonl, .csv, .tsv, .parquet); '-' reads standard input, one per line"
    parser.add_argument("prompts", type=Path, metavar="FILE", help=file)
    field = "Field or column of the prompt in all files except .txt (default: prompt)"
    parser.add_argument("--field", default="prompt", metavar="FIELD", help=field)
    add_rows_arguments(parser, required=True)
    add_special_argument(parser)
    add_generation_arguments(parser)
    add_model_arguments(parser, "dtype", "exact", "weights", "processes", "draft")
    add_ray_arguments(parser)


def run(args: argparse.Namespace) -> int:
    options = generation_options(args)
    prompts = spool_stdin(args.prompts)
    from gpt2np.data.resumable import check_output
    from gpt2np.data.rows import ROW_SUFFIXES
    from gpt2np.prompts import continue_file, job_seed, line_count

    check_output(args.out, ROW_SUFFIXES, force=args.force, inputs=[prompts])
    cluster = ray_cluster(args)
    n_lines = line_count(prompts, args.field)
    lm = load_model(args, may_fall_back=False)
    options = {**options, "seed": job_seed(args.out, options.get("seed"))}
    print_stderr(f"seed: {options['seed']}")
    run_elsewhere = None
    if cluster:
        from gpt2np.distributed.jobs import continue_on_ray

        source = model_source(args, lm)
        run_elsewhere = continue_on_ray(source, prompts, options, args.special, cluster)
    rest = args.force, args.field, args.special, run_elsewhere
    bar = {"total": n_lines, "desc": "generating", "unit": "line"}
    with running_job(args.out, lambda done: f"line {done + 1:,}", **bar) as callbacks:
        n_written, n_skipped, _ = continue_file(lm, prompts, args.out, options, callbacks, *rest)
    if not n_written:
        raise GPT2NPError(f"there is no usable prompt; {args.out} is not written")
    return report_rows(args.out, (n_written, "text"), (n_skipped, "line"))
