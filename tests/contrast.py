"""Contrast of the texts of a page in a browser, as WCAG computes it."""

LEAST = 4.5  # WCAG 2.2, level AA, for text of the usual size

# Each text that can be seen: its contrast with what is behind it, which may be partly transparent,
# its element, its letters.
CONTRAST = """() => {
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const over = (a, b) => [0, 1, 2].map((k) => a[k] * a[3] + b[k] * (1 - a[3]));
  const linear = (v) => v <= 10 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, share, k) => sum + share * linear(rgb[k]), 0);
  const up = (e) => e ? [e, ...up(e.parentElement)] : [];
  const layers = (e) => up(e).reverse().map((p) => parse(getComputedStyle(p).backgroundColor));
  const behind = (e) => layers(e).reduce((b, a) => over(a, b), [255, 255, 255]);
  const found = [];
  for (const e of document.querySelectorAll("body *:not(script):not(style):not(svg *):not(math *):not(:disabled)")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.getBoundingClientRect().width) continue;
    if (!e.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const ink = parse(getComputedStyle(e).color);
    ink[3] *= up(e).reduce((product, p) => product * getComputedStyle(p).opacity, 1);
    const [a, b] = [over(ink, behind(e)), behind(e)].map(light).sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), `${e.tagName}.${e.className}`, e.textContent.slice(0, 40)]);
  }
  return found;
}"""
