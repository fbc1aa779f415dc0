"""Generation: logits → token ids → text.

options, config_file           generation options; their defaults from generation_config.json
logits_processors, sampling    penalties and filters; selection of the next token id
request                        from the arguments of `generate`, with callbacks, to a request
completion, complete           results; from requests to results
sequence, scheduler            sequences that run in batches, one forward pass per step
prefix, token_healing          where a prompt begins, computed once; where a prompt ends
detokenizer                    decoding of token ids to text as they arrive, up to a stop string
streaming, async_engine        streams of text; streams for asyncio and the server
beam_search, drafts            beam search; speculative decoding
scoring                        log probabilities of given texts
"""
