"""The bundled model with a chat template: the tests' own ones, in the manner of well-known ones."""

import json
from pathlib import Path

CHATML = """\
{% for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{% endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' -}}
{% endif %}
"""

LLAMA_2 = """\
{%- if messages[0]['role'] == 'system' -%}
  {%- set rest = messages[1:] -%}
  {%- set told = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' -%}
{%- else -%}
  {%- set rest = messages -%}{%- set told = '' -%}
{%- endif -%}
{%- for message in rest -%}
  {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('user and assistant must alternate, but message '
      ~ loop.index ~ ' does not') }}
  {%- endif -%}
  {%- if message['role'] == 'user' -%}
    {{ bos_token + '[INST] ' + (told if loop.first else '')
      + message['content'].strip() + ' [/INST]' }}
  {%- elif message['role'] == 'assistant' -%}
    {{ ' ' + message['content'] | trim + ' ' + eos_token }}
  {%- else -%}
    {{ raise_exception('no such role: ' + message['role']) }}
  {%- endif -%}
{%- endfor -%}
"""

ZEPHYR = """\
{% for message in messages %}
    {% if message['role'] in ['user', 'system'] %}
        {{- '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}
    {% elif message['role'] == 'assistant' %}
        {{- '<|assistant|>\\n' }}
        {%- generation %}{{ message['content'] + eos_token }}{% endgeneration %}
    {% endif %}
    {% if loop.last and add_generation_prompt %}
        {{- '<|assistant|>' }}
    {% endif %}
{% endfor %}
"""

EVERYTHING = """\
{%- set seen = namespace(count=0, roles=[]) -%}
{%- if tools is not none %}tools!{% endif -%}{%- if documents %}documents!{% endif -%}
{%- macro quoted(message) -%}{{ message | tojson }}{%- endmacro -%}
{{ bos_token }}{{ unk_token }}{{ pad_token }}
{%- for message in messages -%}
  {%- if message.content == 'skip' -%}{%- continue -%}{%- endif -%}
  {%- if message.content == 'stop' -%}{%- break -%}{%- endif -%}
  {%- set seen.count = seen.count + 1 -%}
  {{ seen.count }}: {{ quoted(message) }} {{ {'ä': [1, none]} | tojson(indent=2, sort_keys=true) }}
  {{- message.content | upper | replace('A', '<') | length }} {{ range(3) | join(',') }}
{%- endfor -%}
{{ strftime_now('%Y') | length }} {{ dict(a=1) }} {{ undefined_thing }}|
"""

TEMPLATES = {"ChatML": CHATML, "Llama 2": LLAMA_2, "Zephyr": ZEPHYR, "everything": EVERYTHING}


def chat_model(
    folder: Path, bundled: Path, template: object = CHATML, *, as_file: bool = True
) -> Path:
    """A folder with the bundled model's files and `template`, in either place."""
    folder.mkdir()
    for file in bundled.iterdir():
        if file.name != "tokenizer_config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((bundled / "tokenizer_config.json").read_text())
    if as_file:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    else:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
