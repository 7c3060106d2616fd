"""Text in HTML is escaped, and tables are accessible."""

from jaxagents.experiments.report.markup import Markup, element, joined, table


def test_text_is_escaped_and_markup_is_not():
    inner = element("b", "1 < 2 & 3")
    assert element("p", "<i>", inner) == "<p>&lt;i&gt;<b>1 &lt; 2 &amp; 3</b></p>"
    assert joined(["&", Markup("<br>")]) == "&amp;<br>"


def test_attributes_are_escaped_and_named_as_in_html():
    written = element("img", alt='"><script>', class_="drawn", aria_label="x")
    assert written == '<img alt="&quot;&gt;&lt;script&gt;" class="drawn" aria-label="x">'


def test_a_part_of_markup_is_text_again():
    assert not isinstance(element("b", "x")[:2], Markup)
    assert joined([element("b", "x")[:2]]) == "&lt;b"


def test_a_table_has_row_headers_and_scrolls_in_a_box():
    written = table(["run", "mean"], [["a", "1.5"]], "What it holds.")
    assert '<th scope="row">a</th><td>1.5</td>' in written
    assert '<div class="box" role="region" aria-label="What it holds." tabindex="0">' in written
