"""Words that seldom end a sentence: English articles, pronouns, prepositions and their like."""

_ARTICLES_AND_QUANTITIES = """
a an the this that these those some any no every each either neither such both all few many much
more most less least several other another same own
"""
_PRONOUNS = """
i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it
its itself we us our ours ourselves they them their theirs themselves one who whom whose which
what
"""
_PREPOSITIONS = """
of in to for with on at by from about as into like through after over between out against during
without before under around among up down off above below near since until upon within toward
towards across behind beyond onto
"""
_CONJUNCTIONS = "and but or nor so yet because although though while if unless than whether"
_AUXILIARY_VERBS = """
am is are was were be been being do does did doing done have has had having can could will would
shall should may might must ought
"""
_ADVERBS = """
not only just very too also then there here now when where why how again once ever never even
still already almost quite rather
"""

STOP_WORDS = frozenset(
    " ".join(
        [
            _ARTICLES_AND_QUANTITIES,
            _PRONOUNS,
            _PREPOSITIONS,
            _CONJUNCTIONS,
            _AUXILIARY_VERBS,
            _ADVERBS,
        ]
    ).split()
)
