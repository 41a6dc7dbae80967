"""HTML pages of reports, taken apart."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """What a page would fetch, its scripts, the places of its figures, and its text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.scripts: list[str] = []
        self.plots: dict[str, dict[str, str | None]] = {}
        self.text = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag if tag in ("script", "style") else ""
        self.fetched += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag == "script":
            self.scripts.append("")
        if ("class", "plot") in attrs:
            self.plots[str(dict(attrs)["id"])] = dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif not self._inside:
            self.text += data
