#!/usr/bin/env python3
"""The pages of the documentation as a site: every Markdown page as HTML, with one navigation, and the files that pages
name beside them. A link to a page, a section or a file that is not there is an error.

    site.py FOLDER      writes FOLDER/index.html and the pages; the API reference is expected in FOLDER/reference
"""
import html
import os
import pathlib
import posixpath
import re
import shutil
import sys

from markdown_it import MarkdownIt

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Every page is in one group; the first is the start page.
GROUPS = {
    "Start": ["docs/README.md", "README.md", "docs/tutorial.md", "docs/how/install.md", "docs/examples.md", "docs/glossary.md"],
    "How to": ["docs/how/gpus.md", "docs/python.md", "docs/python_examples.md", "docs/how/python.md", "docs/how/sweep.md", "docs/how/resume.md",
               "docs/how/slurm.md", "docs/how/kubernetes.md", "docs/how/finetune.md"],
    "Coming from": ["docs/from/torchrun.md", "docs/from/mpirun.md", "docs/from/mp_spawn.md", "docs/from/horovod.md", "docs/patterns.md"],
    "Devices and jobs": ["docs/placement.md", "docs/options.md", "docs/gpus.md", "docs/tasks.md", "docs/clusters.md", "docs/faults.md", "docs/watching.md"],
    "Training": ["docs/programs/*.md", "docs/training.md", "docs/ddp.md", "docs/data.md", "docs/parallel/*.md", "examples/*/README.md"],
    "About": ["docs/performance.md", "docs/limits.md", "CHANGELOG.md", "docs/design.md", "docs/design/*.md", "docs/decisions.md", "CONTRIBUTING.md",
              "data/README.md", "tests/data/machines/README.md"],
}
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --link: light-dark(#0b57d0, #8ab4f8); }
body { margin: 0; font: 16px/1.6 system-ui, sans-serif; display: grid; grid-template-columns: 16rem minmax(0, 1fr); }
nav { padding: 1rem 1.25rem; border-right: 1px solid var(--line); font-size: 0.9rem; height: 100vh; overflow-y: auto;
      position: sticky; top: 0; box-sizing: border-box; }
nav b { display: block; margin-top: 1rem; }
nav a { display: block; padding: 0.1rem 0; text-decoration: none; }
nav a[aria-current] { font-weight: 600; color: inherit; }
main { padding: 1rem 2rem 4rem; max-width: 56rem; }
a { color: #0b57d0; } img { max-width: 100%; background: #fff; }
@media (prefers-color-scheme: dark) { body { background: #15171a; color: #e4e4e4; } a { color: #8ab4f8; } }
pre { overflow-x: auto; padding: 0.75rem 1rem; background: var(--soft); border-radius: 6px; line-height: 1.4; }
code { font: 0.88em ui-monospace, monospace; } :not(pre) > code { background: var(--soft); padding: 0.1em 0.3em; border-radius: 4px; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
@media (max-width: 50rem) { body { display: block; } main { padding: 1rem; }
  nav { position: static; height: auto; max-height: 12rem; border: 0; border-bottom: 1px solid var(--line); } }
"""


def output_of(page):
    """Where a page is in the site: docs/ is its root, and README its index."""
    path = "readme.md" if page == "README.md" else page.removeprefix("docs/")
    return re.sub(r"README\.md$", "index.md", path).removesuffix(".md") + ".html"


def anchor(title):
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


class Page:
    def __init__(self, path):
        self.path = path
        self.tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / path).read_text(encoding="utf-8"))
        self.anchors = {}
        for opening, inline in zip(self.tokens, self.tokens[1:]):
            if opening.type != "heading_open":
                continue
            text = "".join(child.content for child in inline.children if child.type in ("text", "code_inline"))
            times = sum(known.split("\0")[0] == anchor(text) for known in self.anchors)
            opening.attrSet("id", anchor(text) + (f"-{times}" if times else ""))
            self.anchors[opening.attrs["id"] + ("\0" if times else "")] = text
        self.title = next(iter(self.anchors.values()), path)

    def targets(self):
        """Each link and picture, as (token, attribute)."""
        for token in self.tokens:
            for child in token.children or []:
                if child.type in ("link_open", "image"):
                    yield child, "href" if child.type == "link_open" else "src"


class Site:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.groups = {name: [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]
                       for name, patterns in GROUPS.items()}
        self.pages = {path: Page(path) for paths in self.groups.values() for path in paths}
        self.problems = []
        self.files = set()

    def check_that_all_are_there(self):
        tops = ("*.md", "docs/**/*.md", "examples/**/*.md")
        missing = {str(path.relative_to(ROOT)) for top in tops for path in ROOT.glob(top)} - set(self.pages)
        self.problems += [f"{path}: a page in no group of scripts/docs/site.py; add it to one" for path in sorted(missing)]

    def link_from(self, page, target):
        """The link in the site for one in a page."""
        if re.match(r"[a-z]+:", target):
            return target
        path, _, section = target.partition("#")
        named = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        here = posixpath.dirname(output_of(page)) or "."
        if posixpath.join(named, "README.md") in self.pages:
            named = posixpath.join(named, "README.md")
        if named in self.pages:
            if section and section not in self.pages[named].anchors:
                self.problems.append(f"{page}: expected a section '{section}' in {named}, got a link to none")
            return posixpath.relpath(output_of(named), here) + (f"#{section}" if section else "")
        if (ROOT / named).is_dir():
            self.files.update(str(path.relative_to(ROOT)) for path in sorted((ROOT / named).iterdir()) if path.is_file())
        elif (ROOT / named).exists():
            self.files.add(named)
        else:
            self.problems.append(f"{page}: expected a file that exists, got a link to '{target}'")
        return posixpath.relpath(posixpath.join("files", named), here)

    def navigation(self, current):
        here = posixpath.dirname(output_of(current)) or "."
        lines = []
        for name, paths in self.groups.items():
            lines.append(f"<b>{name}</b>")
            for path in paths:
                mark = ' aria-current="page"' if path == current else ""
                lines.append(f'<a href="{posixpath.relpath(output_of(path), here)}"{mark}>{html.escape(self.pages[path].title)}</a>')
        lines.append(f'<a href="{posixpath.relpath("reference/index.html", here)}">API reference</a>')
        return "\n".join(lines)

    def html_of(self, page):
        for token, attribute in page.targets():
            token.attrSet(attribute, self.link_from(page.path, token.attrs[attribute]))
        markdown = MarkdownIt("commonmark").enable("table")
        body = markdown.renderer.render(page.tokens, markdown.options, {})
        return ("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
                f"<title>{html.escape(page.title)} · muster</title>\n<style>{STYLE}</style></head>\n"
                f"<body><nav>{self.navigation(page.path)}</nav>\n<main>\n{body}</main></body></html>\n")

    def write(self):
        for path, page in self.pages.items():
            file = self.folder / output_of(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.html_of(page), encoding="utf-8")
        for named in self.files:
            copy = self.folder / "files" / named
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / named, copy)


def main(folder):
    site = Site(folder)
    site.check_that_all_are_there()
    site.write()
    for problem in site.problems:
        print(f"docs: {problem}", file=sys.stderr)
    print(f"docs: {len(site.pages)} pages in {os.path.join(folder, 'index.html')}")
    return 1 if site.problems else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
