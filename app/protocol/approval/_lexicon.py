"""The lists of words behind the rules for wording. Data: what is done with them stands in `wording.py`."""

import re


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words without content: not counted as new, and the sign of an English sentence.
FUNCTION_WORDS = _set(
    "a about above across after again all along also am among an and another any anything are as at back be "
    "because been before being below between both but by can could did do does doing done down during each "
    "either else etc eg even every few first for from further given gives get gets had has have having here how "
    "however i ie if in instead into is it its itself just last least less let like many may might more most "
    "much must need needs neither new next no none nor not now of off old on once one only onto or other others "
    "otherwise our out over own per please rather same second see several shall should since so some still such "
    "than that the their them themselves then there these they this those though through thus to together too "
    "two under unless until up upon use used uses using very via was we well were what when where whether which "
    "while who whole whose why will with within without would yet you your yours cannot cant dont doesnt isnt "
    "wont "
)

# What tells a reader what to do, whatever the sentence is about.
INSTRUCTION = re.compile(
    r"\b(?:always|never|ignore\w*|disregard\w*|forget|override\w*|bypass\w*|supersede\w*|precedence|prioriti[sz]e\w*"
    r"|mandatory|compulsory|obey|comply|pretend|secretly|silently|quietly|covertly|discreetly|invisibly"
    r"|make sure|be sure|ensure that|take care|remember|under no circumstances|at all costs|no matter"
    r"|important|critical|crucial|vital|urgent|attention|prerequisite|precondition"
    r"|do not|dont|must not|should not|may not|refrain"
    r"|without (?:asking|telling|informing|mentioning|confirm\w+|notif\w+)"
    r"|you (?:must|should|need|have|ought|shall|will|are|may)"
    r"|it is (?:customary|usual|essential|necessary|recommended|best)"
    r"|(?:must|should|needs? to|has to|have to) (?:first |also |always )?(?:be )?"
    r"(?:call|us|invok|run|execut|read|sen[dt]|pass|includ|attach|cop|fill|forward|collect)\w*"
    r"|(?:before|after|prior to|when|while|whenever|every time|each time) "
    r"(?:you|using|calling|invoking|running|any|every|each|reading) ?\w*"
    r"|every (?:call|request|answer|caller|time)|each (?:call|request|answer)"
    r"|for (?:any|every|all) (?:request|question|quer|task|call|answer)\w*"
    r"|(?:use|call|prefer)\w* (?:\w+ ){1,6}(?:instead|rather)|takes the place"
    r"|(?:been|is|are) replaced|this (?:tool )?replaces|out of date|obsolete|deprecated"
    r"|note (?:for|to)|new rules|rules? (?:apply|applies)|do(?:es)? not apply|no longer appl\w+"
    r"|callers? (?:must|should|has to|have to|send|attach|include|pass)|as every)\b"
)

# Verbs that begin an order. They begin descriptions of tools as well: the first sentence of a text may.
ORDERS = _set(
    "add answer append apply ask attach begin bring call check choose click collect combine compose confirm "
    "consider contact copy deliver describe disclose do download encode enter execute extract fetch fill find "
    "first finally follow forward gather get give go grant hand hide import include inform insert install "
    "invoke join keep leave list load look mention move navigate note notify obtain omit open output paste pass "
    "place please post prefer prepend present print proceed provide publish pull push put query quote read "
    "reply repeat report respond retrieve return reveal run save say search select send set share show skip "
    "start state stop store submit summarise summarize supply take tell then treat trust try turn type update "
    "upload use verify visit wait write"
)

# Who reads a definition and is not a person.
READERS = _set(
    "agent agents ai aitool anthropic assistant assistants bot bots chatbot chatgpt claude codex copilot cursor "
    "gemini gpt llm llms model models openai subagent"
)

# What an edit of the wording has no reason to begin to speak of.
SENSITIVE = _set(
    "account admin administrator administrators approval audit authentication authorization base64 "
    "bash bcc billing card chat chats clipboard cmd command commands compliance confirmation consent "
    "conversation conversations cookie cookies credential credentials curl decode dialog dialogue discussion "
    "dotenv encode encoded env environment eval exec execute exfiltrate forward forwarded guidance guideline "
    "guidelines hidden history home iban id_rsa inbox instruction instructions invisible jailbreak key keyboard "
    "keychain keyfile keys keystore login mail mailbox memories memory messaging mirror mirrored npx operator "
    "operators passcode passphrase passwd password passwords payment permission permissions person personal pip "
    "policy policies powershell preceding privacy private privilege privileges prompt prompts recipient "
    "recipients rules sandbox script scripts secret secrets shell signature ssh sudo system telemetry "
    "terminal token tokens transcript transcripts upload uploaded user username users verification wallet wget "
    "whoami"
)

# Tags that models take for more than text.
TAGS = re.compile(
    r"(?i)<\s*/?\s*(?:\w*[_-])?(?:important|system|instructions?|admin|secret|assistant|user|human|tool|note|hidden|critical"
    r"|mandatory|override|prompt|context|rules?|polic(?:y|ies)|reminder|thinking|s|inst|sys)(?:[_-]\w*)?\s*>"
    r"|</\s*\w+\s*>|<\|[^|>\n]{1,40}\|>|\[/?INST\]|<<\s*/?SYS\s*>>"
    r"|(?:^|[.!?]\s)\W{0,4}(?:system|assistant|human|developer|ai|model)\s*:|^#{1,6}\s*(?:system|instruction|important|note)"
)

# Two different ones make a sentence foreign, if it has no more English ones. None is an English word.
FOREIGN = (
    _set(
        "aber alle als auch auf aus bei bevor bitte das dem den der des die dies dieser durch ein eine einem "
        "einen einer ist jede jeder jeden kein keine mit muss nach nicht oder sich sie sind und unter vom von "
        "vor werden wird zu zum zur al antes cada como con cuando de debe del el ella esta este hay herramienta "
        "la las lo los nunca para pero por que sea siempre sin sobre su sus todo todos un una usar y au aucun "
        "avant avec ce cela cette chaque dans du elle en est et faut il ils jamais je le les leur lorsque mais "
        "ne nous outil par pas plus pour puis qui sans ses son sont sur toujours tous tout vous agli alla anche "
        "che chi come dei della delle deve di e gli ma nel nella non ogni per piu prima questo quando sempre "
        "senza si sono strumento tutti uno uso antes ao cada com da das deve do dos ela ele em esta ferramenta "
        "isto mas na nao nas no nos os ou pela pelo quando se sem sempre seu sua todos uma voce aan alle altijd "
        "bij dan dat deze dit door een en geen het ieder je maar met moet naar niet nog of om ook op te tot uit "
        "van voor voordat wordt ze zijn zonder jest jego na nie przed przez sie tego to w z zawsze att av det "
        "eller ett for fran har innan inte med och om samt ska som till varje"
    )
    - FUNCTION_WORDS
    - _set("come do e per plus men son pour den die do dos no of on op once y com con al um")
)
