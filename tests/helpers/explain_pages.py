"""Prompts and a model for tests of the explain page."""

PROMPT = "Once upon a time there was a little fox, and the fox said: what a fine day"
LONG = "It was the best of times, it was the worst of times, it was the age of wisdom, it was "
MARKUP = "</script><script>window.hacked=1</script><img src=x onerror='hacked=2'>&lt;${x}$x"
SIGNS = "🦊👩\u200d🚀 שלום \u202eabc\x00\x1b[31m\r\n\tend\u2028\xad <!-- ]]>"
