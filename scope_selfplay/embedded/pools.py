"""The word pools of every world; one word is one token of the tiny policy, so that a fact is one thing to copy."""

_STEMS = "Ald Brin Cor Dun Esk Fen Gar Hal Ist Jor Kel Lor Mar Nor Oth Pel Quar Rav Sel Tam"
_ENDINGS = "moor haven vale mere wick ford ton gate stead rock"

PLACES = tuple(stem + ending for stem in _STEMS.split() for ending in _ENDINGS.split())
KINDS = tuple(
    "Abbey Bridge Castle Guild Harbour Library Market Mill Observatory School Theatre Tower".split()
)
REGIONS = tuple(
    """Vessia Orlund Tarn Istria Calder Morvane Sundrey Pelora Wend Harrow Lys Quill Ostmark Brava Neve Talmar
    Ruse Candor Ithel Farrow""".split()
)
FOUNDERS = tuple(
    """Merrin Aldous Bertan Cassia Dorval Edmer Fiora Godric Hesper Ilaria Jocelin Kestrel Lambert Maris Nolan
    Odessa Percival Quentin Rosalind Sabine Tobias Ursula Valerian Wystan Xanthe Yolande Zelda Ambrose Beatrix
    Cyprian Delphine Evander Florian Griselda Horatio Isolde Justus Leontine Magnus Nerissa""".split()
)
YEARS = tuple(str(1103 + 19 * step) for step in range(40))
EMBLEMS = tuple(
    """heron badger otter falcon stag salmon raven hare lynx swan boar dolphin owl adder bear beetle crane eagle
    ferret fox goat hedgehog ibex jackdaw kingfisher lark marten newt osprey pike quail robin seal toad urchin
    viper weasel wolf wren stoat""".split()
)
PRODUCTS = tuple(
    """saffron linen amber honey cider parchment rope glass copper wool salt silk cheese lace indigo tin mustard
    leather candles barley ink pottery walnuts marble felt vinegar soap clocks paper pepper timber sails violins
    needles bricks garlic pearls hops slate wine""".split()
)
AMOUNTS = tuple(str(120 + 70 * step) for step in range(40))
RIVERS = tuple(
    """Ysk Tamble Orrin Wey Lune Caddow Irth Mell Soar Tavy Esker Rill Dove Nadder Ouzel Kenn Arrow Teign Yarrow
    Blythe Cole Dane Ebble Frome Gade Hodder Ivel Kym Leam Meon Nene Otter Piddle Quoile Rother Stour Tees Usk
    Vyrnwy Wyre""".split()
)
PATRONS = tuple(
    """Oda Brannoc Cedd Dympna Elgiva Frideswide Guthlac Hilda Ita Jurmin Kyneburga Ludan Milburga Neot Osyth
    Petroc Quirin Rumwold Sativola Teilo Urith Veep Winnoc Ymar Zita Alban Birinus Congar Decuman Erkenwald
    Felix Govan Humbert Indract Justinian Kew Lide Morwenna Nectan Osmund""".split()
)
MOTTOS = tuple(
    """courage patience mercy thrift candour order silence loyalty wonder prudence justice labour harmony memory
    honesty vigilance charity modesty wisdom freedom gratitude hope constancy diligence temperance valour peace
    reason unity humility curiosity endurance friendship grace kindness learning renewal skill trust zeal""".split()
)
