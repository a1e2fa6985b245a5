import pytest

from app.processes.endings import NO_THREAD, TRUST, Exit, of_end, of_words


@pytest.mark.parametrize(
    ("description", "helps"),
    [
        ("killed: it wrote more than 1000 lines in a minute that are no JSON", "have it write its log to stderr"),
        ("killed: it wrote a line without end", "MAX_LINE_BYTES"),
        ("killed: it does not read its input", "is stuck"),
        ("killed: it closed its input or output and lived on", "in the background"),
    ],
)
def test_what_a_process_was_killed_for_is_what_the_hint_is_about(description: str, helps: str):
    assert helps in (of_end(description) or "")
    assert helps in (Exit("killed", description).error(hint="It ended before it answered `initialize`.").hint or "")


def test_of_other_ends_nothing_is_known():
    assert of_end("exit status 3") is None
    assert Exit("exited", "exit status 3").error(hint="as before").hint == "as before"


@pytest.mark.parametrize(
    "line",
    [
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
        "Error: self-signed certificate in certificate chain",
        "  code: 'UNABLE_TO_VERIFY_LEAF_SIGNATURE'",
        "tls: failed to verify certificate: x509: certificate signed by unknown authority",
        "curl: (60) SSL certificate problem: unable to get local issuer certificate",
    ],
)
def test_a_certificate_that_it_does_not_trust_is_named(line: str):
    assert of_words(["trying", line]) == TRUST
    assert of_words(["getaddrinfo ENOTFOUND example.com"]) is None


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: can't start new thread",
        "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or limits reached",
        "bash: fork: retry: Resource temporarily unavailable",
        "Error: spawn /usr/bin/git EAGAIN",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 5 of 8: Resource temporarily unavailable",
    ],
)
def test_a_limit_of_the_machine_on_threads_is_named_where_it_is_not_the_processs_own(line: str):
    assert of_words([line]) == NO_THREAD
    assert (
        of_words(["BlockingIOError: [Errno 11] Resource temporarily unavailable", "a new thread was started"]) is None
    )
