"""Images: from a command that names one to the id under which every node starts it."""

from dataclasses import replace

import anyio
import anyio.to_thread

from app.backends.images._container import text_of, variables_of
from app.backends.images.engine import Engine, EngineFailed, Image, ImageUnfit
from app.backends.images.recognition import ImageRequest, NotRunnable, recognised_image
from app.domain import BackendSpec, Package
from app.errors import InvalidRequest

ACT_S = 280.0  # for what a person waits for
AT_ONCE = 2  # of a node; others wait
_MADE_HERE = "localhost/"  # how the names of images begin that no registry has
NO_ENGINE = (
    "this command starts a container, and the gateway has no engine for those: have a platform administrator set "
    "CONTAINER_ENGINE to podman or docker on each node, or install the server itself and name its program as `command`"
)


class Images:
    """`engine`: None: this node has none."""

    def __init__(self, engine: Engine | None) -> None:
        self._engine = engine
        self._places = anyio.CapacityLimiter(AT_ONCE)

    async def resolved(self, spec: BackendSpec, known: BackendSpec | None = None) -> BackendSpec:
        """The backend with the image that its command names: that of the `known` backend as long as it names the same,
        else the one that the engine has under this name now, or gets.

        Raises:
            InvalidRequest: there is no engine, or no such image; or the backend asks for what no container has.
        """
        request = _request_of(spec)
        if known is not None and (spec.command, spec.args) == (known.command, known.args) and not known.is_image:
            return replace(spec, package=known.package)  # registered before there were images
        _require_fitting(spec, request)
        if known is not None and known.is_image and _names_same(known, request):
            return replace(spec, package=known.package)
        return replace(spec, package=await self._packaged(request))

    async def updated(self, spec: BackendSpec) -> BackendSpec:
        """The backend with what the name of its image means now where the engine gets it from. Raises as `resolved`."""
        request = _request_of(spec)
        _require_fitting(spec, request)
        return replace(spec, package=await self._packaged(request, is_newest=not request.name.startswith(_MADE_HERE)))

    async def _packaged(self, request: ImageRequest, *, is_newest: bool = False) -> Package:
        """Raises InvalidRequest."""
        if self._engine is None:
            raise InvalidRequest(NO_ENGINE, field="command")
        try:
            with anyio.fail_after(ACT_S):
                async with self._places:
                    image = await anyio.to_thread.run_sync(self._found, request, is_newest, abandon_on_cancel=True)
        except TimeoutError:
            words = f"the image {request.reference} could not be had within {ACT_S:g} s; try again"
            raise InvalidRequest(words, field="command") from None
        except EngineFailed as error:
            words = f"the image {request.reference} cannot be had: {error}"
            raise InvalidRequest(words, field="command") from None
        return Package("oci", request.name, request.tag or request.digest or "latest", "", image.id)

    def _found(self, request: ImageRequest, is_newest: bool) -> Image:
        """Raises EngineFailed."""
        assert self._engine is not None
        if is_newest:
            self._engine.pull(request.reference, ACT_S)
        try:
            return self._engine.image(request.reference)
        except ImageUnfit:
            raise
        except EngineFailed:  # if it is for another reason, the engine says that again
            self._engine.pull(request.reference, ACT_S)
        return self._engine.image(request.reference)


def _request_of(spec: BackendSpec) -> ImageRequest:
    """Raises InvalidRequest."""
    try:
        request = recognised_image(spec.command, spec.args)
    except NotRunnable as error:
        raise InvalidRequest(str(error), field="args") from None
    assert request is not None
    return request


def _names_same(known: BackendSpec, request: ImageRequest) -> bool:
    try:
        before = recognised_image(known.command, known.args)
    except NotRunnable:
        return False
    return before is not None and before.reference == request.reference


def _require_fitting(spec: BackendSpec, request: ImageRequest) -> None:
    """Raises InvalidRequest: it asks for something that no container of the gateway can have."""
    usual = BackendSpec("", "", "")
    if spec.sandbox.network_kind != "none":
        words = "a container has no network yet: leave `network` at `none`, or install the server itself"
        raise InvalidRequest(f"{words} and name its program as `command`", field="sandbox/network")
    if spec.sandbox.mode == "off":
        raise InvalidRequest("a container is confined by its engine in any case: leave it out", field="sandbox/mode")
    for name, words in (
        ("state", "a container has no home that lasts: name a directory with `-v`"),
        ("start", "no container is forked: leave it out"),
        ("cwd", "write the working directory of a container as `-w DIRECTORY` before the name of its image"),
    ):
        if getattr(spec, name) != getattr(usual, name):
            raise InvalidRequest(words, field=name)
    try:
        text_of(variables_of(spec, request))
    except ValueError as error:
        raise InvalidRequest(str(error), field="env") from None
