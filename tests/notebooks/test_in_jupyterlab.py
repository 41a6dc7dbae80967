"""The live view in JupyterLab, in a browser: it follows a run to its end, its curves are drawn, nothing complains."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.needs import needs
from tests.processes import PATIENCE, until

pytestmark = needs("browser")
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "watch-a-run.ipynb"
OPEN = """(() => {
  jupyterapp.commands.execute("docmanager:open", {path: "watch-a-run.ipynb"}).then((opened) => {
    window.opened = opened;
    return opened.context.ready.then(() => opened.sessionContext.ready);
  }).then(() => { window.ready = true; });
  return true; })()"""
IS_READY = "window.ready === true && !!opened.sessionContext.session.kernel"
RUN_ALL = """(() => {
  jupyterapp.shell.activateById(opened.id);
  jupyterapp.commands.execute("notebook:run-all-cells").then((well) => { window.ran = well; });
  return true; })()"""
SAYS = """[...document.querySelectorAll(".widget-label")].map((label) => label.textContent).join()"""
# the share of the progress bar, and the points of the curve of samples per second
BAR = 'document.querySelector(".progress-bar").style.width'
POINTS = 'document.querySelectorAll(".jupyter-widgets .scatterlayer .trace:first-child .points path").length'
DATA = """JSON.stringify([...document.querySelectorAll(".js-plotly-plot")].map((plot) => plot.data))"""
WRONG = """document.querySelectorAll('[data-mime-type="application/vnd.jupyter.stderr"], .jp-mod-error').length"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab with the notebook in its folder."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / NOTEBOOK.name).write_bytes(NOTEBOOK.read_bytes())
    folders = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "JUPYTERLAB_SETTINGS_DIR")
    own = {name: str(tmp_path / name) for name in (*folders, "JUPYTERLAB_WORKSPACES_DIR")}
    words = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", "--IdentityProvider.token="]
    words += ["--expose-app-in-browser", f"--ServerApp.root_dir={tmp_path / 'files'}"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter", "lab", *words],
            cwd=tmp_path, env=os.environ | own, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        runtime = tmp_path / "JUPYTER_RUNTIME_DIR"
        # the file ends with a brace, and is there before it is whole
        addresses = lambda: [text for path in runtime.glob("jpserver-*.json") if (text := path.read_text())[-1:] == "}"]  # noqa: E731
        until(lambda: addresses() or process.poll() is not None)
        yield json.loads(addresses()[0])["url"]
    finally:
        process.send_signal(signal.SIGTERM)  # it ends its kernels
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
            raise


def test_the_view_follows_a_run_in_jupyterlab(server: str, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"{server}lab", height=1400, drawn=False)
        until(lambda: browser.run('!!window.jupyterapp && jupyterapp.commands.hasCommand("notebook:run-all-cells")'))
        browser.run(OPEN)
        until(lambda: browser.run(IS_READY))
        browser.run(RUN_ALL)
        until(lambda: "done · prefetch on 2 nodes" in browser.run(SAYS), missing="the view shows no end of the run")
        drawn = lambda: browser.run(POINTS) > 0  # noqa: E731
        with suppress(AssertionError):
            until(drawn)
        assert drawn(), browser.run(DATA)
        until(lambda: browser.run("window.ran === true"), missing="the notebook has not run to its end")
        assert browser.run(BAR) == "100%"
        assert browser.run(WRONG) == 0
        browser.picture(tmp_path / "view.png")
        assert [said for said in browser.complaints if json.loads(said).get("type") not in ("debug", "log")] == []
        assert [address for address in browser.requests if not address.startswith((server, "data:", "blob:"))] == []
