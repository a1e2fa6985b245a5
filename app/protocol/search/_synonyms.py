"""Words that ask for the same thing in tools of different authors. A word of a row finds the others, at less weight.

Written from what servers in general offer, not from a test set. A row is for one meaning; a word may be in several.
"""

from app.protocol.search._words import term_of

_ROWS = """
add create compose draft generate make new produce
delete discard drop erase remove
display fetch get load obtain open read retrieve see show view
all browse enumerate list
discover find locate lookup query search seek
adjust alter change edit modify patch revise update
persist record save store write
deliver post publish send submit
execute invoke launch perform run start
end halt kill stop terminate
move relocate rename
clone copy duplicate
check inspect validate verify
convert transform translate
compare diff difference
digest summarize summary
join merge combine
image photo picture
directory folder
document file
film movie
repo repository
database db sql
chat conversation message
bug issue ticket
forecast temperature weather
share stock ticker
cost price quote
address geocode location map place
direction navigation route
link page site url web website
capture screenshot
email inbox mail
appointment calendar event meeting schedule
reminder task todo
account member people person user
article paper publication
powerpoint ppt pptx presentation slide
excel sheet spreadsheet workbook xlsx
docx word
chart diagram graph plot
railway train
accommodation homestay hotel lodging
commit revision
bash command shell terminal
knowledge memory note
detail info information metadata
large size
history log
clock time timezone
container docker
cluster k8s kubernetes pod
"""


def _neighbours() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for row in _ROWS.splitlines():
        terms = [term_of(word) for word in row.split()]
        for term in filter(None, terms):
            found.setdefault(term, {}).update(dict.fromkeys(each for each in terms if each and each != term))
    return {term: tuple(others) for term, others in found.items()}


SYNONYMS = _neighbours()
