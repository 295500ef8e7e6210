"""Calendar words and date templates of ten languages.

A template has the fields of a date in braces:

    {weekday} {dow}              Thursday, Thu
    {month} {mon} {m} {mm}       March, Mar, 3, 03
    {day} {d} {dd}               5 (1er, 1º for the first in some languages), 5, 05
    {ordinal} {spelled}          5th, fifth
    {year} {yy}                  2026, 26
"""

from dataclasses import dataclass

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Language:
    """Calendar words of a language, from Monday and January, and its date templates."""

    name: str
    templates: Words
    weekdays: Words = ()
    weekdays_short: Words = ()
    months: Words = ()
    months_short: Words = ()
    ordinals: Words = ()
    spelled: Words = ()
    first: str = "1"  # value of {day} for the first day of a month


def _words(text: str) -> Words:
    return tuple(text.split())


ENGLISH = Language(
    name="English",
    weekdays=_words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    weekdays_short=_words("Mon Tue Wed Thu Fri Sat Sun"),
    months=_words("January February March April May June July August September October November December"),
    months_short=_words("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"),
    ordinals=_words(
        "1st 2nd 3rd 4th 5th 6th 7th 8th 9th 10th 11th 12th 13th 14th 15th 16th 17th 18th 19th 20th "
        "21st 22nd 23rd 24th 25th 26th 27th 28th 29th 30th 31st"
    ),
    spelled=_words(
        "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
        "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third "
        "twenty-fourth twenty-fifth twenty-sixth twenty-seventh twenty-eighth twenty-ninth thirtieth thirty-first"
    ),
    templates=(
        "{month} {day}, {year}",
        "{month} {ordinal}, {year}",
        "{day} {month} {year}",
        "{ordinal} {month} {year}",
        "{weekday}, {month} {day}, {year}",
        "{weekday} {day} {month} {year}",
        "the {ordinal} of {month} {year}",
        "the {spelled} of {month} {year}",
        "{weekday}, the {spelled} of {month} {year}",
        "{mon} {day}, {year}",
        "{mon} {day} '{yy}",
        "{day} {mon} {year}",
        "{day}-{mon}-{year}",
        "{dow}, {mon} {day}, {year}",
        "{dow} {day} {mon} {year}",
        "{dow}, {m}/{d}/{yy}",
        "{dow} {mm}/{dd}/{year}",
        "{weekday}, {m}/{d}/{year}",
    ),
)

GERMAN = Language(
    name="German",
    weekdays=_words("Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"),
    weekdays_short=_words("Mo Di Mi Do Fr Sa So"),
    months=_words("Januar Februar März April Mai Juni Juli August September Oktober November Dezember"),
    months_short=_words("Jan. Feb. März Apr. Mai Juni Juli Aug. Sept. Okt. Nov. Dez."),
    templates=(
        "{day}. {month} {year}",
        "{weekday}, {day}. {month} {year}",
        "{weekday}, den {day}. {month} {year}",
        "am {day}. {month} {year}",
        "{day}. {mon} {year}",
        "{day}. {month} '{yy}",
        "{dow}., {day}. {mon} {year}",
        "{dow} {d}.{m}.{yy}",
        "{dow}, {dd}.{mm}.{year}",
        "{weekday}, {d}.{m}.{year}",
    ),
)

FRENCH = Language(
    name="French",
    weekdays=_words("lundi mardi mercredi jeudi vendredi samedi dimanche"),
    weekdays_short=_words("lun. mar. mer. jeu. ven. sam. dim."),
    months=_words("janvier février mars avril mai juin juillet août septembre octobre novembre décembre"),
    months_short=_words("janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc."),
    first="1er",
    templates=(
        "{day} {month} {year}",
        "le {day} {month} {year}",
        "{weekday} {day} {month} {year}",
        "le {weekday} {day} {month} {year}",
        "{day} {mon} {year}",
        "{dow} {day} {mon} {year}",
        "{dow} {d}/{m}/{yy}",
        "{dow} {dd}/{mm}/{year}",
        "{weekday} {dd}/{mm}/{year}",
    ),
)

SPANISH = Language(
    name="Spanish",
    weekdays=_words("lunes martes miércoles jueves viernes sábado domingo"),
    weekdays_short=_words("lun mar mié jue vie sáb dom"),
    months=_words("enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"),
    months_short=_words("ene feb mar abr may jun jul ago sept oct nov dic"),
    templates=(
        "{day} de {month} de {year}",
        "el {day} de {month} de {year}",
        "{weekday}, {day} de {month} de {year}",
        "{weekday} {day} de {month} de {year}",
        "{day} {mon} {year}",
        "{day}-{mon}-{year}",
        "{dow}., {day} {mon}. {year}",
        "{dow} {d}/{m}/{yy}",
        "{dow}, {dd}/{mm}/{year}",
        "{weekday} {d}/{m}/{year}",
    ),
)

# No template has "il": before 8 and 11 the article is elided (l'8 marzo, l'11 marzo).
ITALIAN = Language(
    name="Italian",
    weekdays=_words("lunedì martedì mercoledì giovedì venerdì sabato domenica"),
    weekdays_short=_words("lun mar mer gio ven sab dom"),
    months=_words("gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre"),
    months_short=_words("gen feb mar apr mag giu lug ago set ott nov dic"),
    first="1º",
    templates=(
        "{day} {month} {year}",
        "{weekday} {day} {month} {year}",
        "{weekday}, {day} {month} {year}",
        "{day} {month} '{yy}",
        "{day} {mon} {year}",
        "{dow} {day} {mon} {year}",
        "{dow} {d}/{m}/{yy}",
        "{dow} {dd}/{mm}/{year}",
        "{weekday} {d}/{m}/{year}",
    ),
)

PORTUGUESE = Language(
    name="Portuguese",
    weekdays=_words("segunda-feira terça-feira quarta-feira quinta-feira sexta-feira sábado domingo"),
    weekdays_short=_words("seg ter qua qui sex sáb dom"),
    months=_words("janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro"),
    months_short=_words("jan fev mar abr mai jun jul ago set out nov dez"),
    first="1º",
    templates=(
        "{day} de {month} de {year}",
        "em {day} de {month} de {year}",
        "{weekday}, {day} de {month} de {year}",
        "{day} de {mon}. de {year}",
        "{dow}., {day} de {mon}. de {year}",
        "{dd}/{mon}/{year}",
        "{dow}, {dd}/{mm}/{yy}",
        "{dow}., {d}/{m}/{year}",
        "{weekday}, {dd}/{mm}/{year}",
    ),
)

DUTCH = Language(
    name="Dutch",
    weekdays=_words("maandag dinsdag woensdag donderdag vrijdag zaterdag zondag"),
    weekdays_short=_words("ma di wo do vr za zo"),
    months=_words("januari februari maart april mei juni juli augustus september oktober november december"),
    months_short=_words("jan feb mrt apr mei jun jul aug sep okt nov dec"),
    templates=(
        "{day} {month} {year}",
        "{weekday} {day} {month} {year}",
        "op {day} {month} {year}",
        "op {weekday} {day} {month} {year}",
        "{day} {mon} {year}",
        "{day} {mon} '{yy}",
        "{dow} {day} {mon} {year}",
        "{dow} {d}-{m}-{year}",
        "{dow} {dd}-{mm}-{yy}",
        "{weekday} {d}-{m}-{year}",
    ),
)

# Months are in the genitive after a day, and so are their abbreviations (мая, not май).
RUSSIAN = Language(
    name="Russian",
    weekdays=_words("понедельник вторник среда четверг пятница суббота воскресенье"),
    weekdays_short=_words("пн вт ср чт пт сб вс"),
    months=_words("января февраля марта апреля мая июня июля августа сентября октября ноября декабря"),
    months_short=_words("янв. февр. мар. апр. мая июн. июл. авг. сент. окт. нояб. дек."),
    templates=(
        "{day} {month} {year}",
        "{day} {month} {year} г.",
        "{day} {month} {year} года",
        "{weekday}, {day} {month} {year} г.",
        "{weekday}, {day} {month} {year} года",
        "{day} {mon} {year} г.",
        "{dow}, {day} {mon} {year} г.",
        "{dow} {dd}.{mm}.{yy}",
        "{dow}, {dd}.{mm}.{year}",
        "{dd}.{mm}.{year} г.",
    ),
)

# Months are in the genitive after a day.
POLISH = Language(
    name="Polish",
    weekdays=_words("poniedziałek wtorek środa czwartek piątek sobota niedziela"),
    weekdays_short=_words("pon. wt. śr. czw. pt. sob. niedz."),
    months=_words("stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia"),
    months_short=_words("sty lut mar kwi maj cze lip sie wrz paź lis gru"),
    templates=(
        "{day} {month} {year}",
        "{day} {month} {year} r.",
        "{weekday}, {day} {month} {year}",
        "{weekday}, {day} {month} {year} r.",
        "{day} {mon} {year}",
        "{dow}, {day} {mon} {year}",
        "{dow} {dd}.{mm}.{yy}",
        "{dow}, {d}.{mm}.{year}",
        "{dd}.{mm}.{year} r.",
    ),
)

SWEDISH = Language(
    name="Swedish",
    weekdays=_words("måndag tisdag onsdag torsdag fredag lördag söndag"),
    weekdays_short=_words("mån tis ons tors fre lör sön"),
    months=_words("januari februari mars april maj juni juli augusti september oktober november december"),
    months_short=_words("jan. feb. mars apr. maj juni juli aug. sep. okt. nov. dec."),
    templates=(
        "{day} {month} {year}",
        "den {day} {month} {year}",
        "{weekday} {day} {month} {year}",
        "{weekday}en den {day} {month} {year}",
        "{day} {mon} {year}",
        "{dow} {day} {mon} {year}",
        "{dow} {d}/{m} {year}",
        "{dow} {year}-{mm}-{dd}",
    ),
)

# Dates in digits only, common to many languages.
DIGITS = Language(
    name="digits only",
    templates=(
        "{year}-{mm}-{dd}",
        "{year}/{mm}/{dd}",
        "{year}{mm}{dd}",
        "{d}.{m}.{year}",
        "{dd}.{mm}.{year}",
        "{dd}.{mm}.{yy}",
        "{m}/{d}/{year}",
        "{m}/{d}/{yy}",
        "{d}/{m}/{year}",
        "{dd}/{mm}/{yy}",
        "{d}-{m}-{year}",
    ),
)
