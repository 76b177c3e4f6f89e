"""HTML elements as text; everything that is not an element is escaped."""

from html import escape

from markdown_it import MarkdownIt

# Raw HTML in a description is shown as text.
_markdown = MarkdownIt("commonmark", {"html": False})


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


Content = str | None


def element(name: str, *content: Content, **attributes: str) -> Markup:
    """An element with its content; `class_` is the attribute `class`, and an empty content is left out."""
    shown = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{shown}>{joined(*content)}</{name}>")


def joined(*content: Content) -> Markup:
    """Several contents after each other."""
    return Markup("".join(each if isinstance(each, Markup) else escape(each, quote=False) for each in content if each))


def from_markdown(text: str) -> Markup:
    """A description as HTML."""
    return Markup(_markdown.render(text))


def from_markdown_line(text: str) -> Markup:
    """A description of one paragraph as HTML, for the cell of a table."""
    return Markup(_markdown.renderInline(text))
