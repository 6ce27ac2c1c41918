#include "muster/draw/svg_canvas.h"

#include <cmath>

#include "muster/base/strings.h"
#include "muster/draw/xml_text.h"

namespace muster {

namespace {

// A number with one decimal at most; never in the user's locale.
std::string number(double value) {
  const long tenths = std::lround(value * 10);
  return tenths % 10 == 0 ? cat(tenths / 10) : cat(tenths / 10, ".", tenths % 10);
}

std::string attributes(const SvgStyle& style, const char* kind) {
  std::string text = cat(" fill=\"", style.fill, "\"");
  if (std::string_view(style.stroke) != "none") {
    text += cat(" stroke=\"", style.stroke, "\" stroke-width=\"", number(style.stroke_width), "\"");
  }
  if (*style.dashes != '\0') text += cat(" stroke-dasharray=\"", style.dashes, "\"");
  if (style.radius > 0) text += cat(" rx=\"", style.radius, "\"");
  if (*kind != '\0') text += cat(" class=\"", kind, "\"");
  return text;
}

}  // namespace

void SvgCanvas::close(const char* element, std::string_view name) {
  body_ += name.empty() ? std::string("/>\n") : cat("><title>", xml_text(name), "</title></", element, ">\n");
}

void SvgCanvas::box(const SvgBox& box, const SvgStyle& style, const char* kind, std::string_view name) {
  body_ += cat("<rect x=\"", box.x, "\" y=\"", box.y, "\" width=\"", box.width, "\" height=\"", box.height,
               "\"", attributes(style, kind));
  close("rect", name);
}

void SvgCanvas::path(const std::string& commands, const SvgStyle& style, const char* kind,
                     std::string_view name) {
  body_ += cat("<path d=\"", commands, "\"", attributes(style, kind));
  close("path", name);
}

void SvgCanvas::text(int x, int baseline, std::string_view text, const SvgFont& font) {
  constexpr const char* kAnchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
  body_ += cat("<text x=\"", x, "\" y=\"", baseline, "\" font-size=\"", font.size, "\" fill=\"", font.fill,
               "\"", kAnchors[static_cast<size_t>(font.align)], font.bold ? " font-weight=\"bold\"" : "", ">",
               xml_text(text), "</text>\n");
}

std::string SvgCanvas::finish(int width, int height, std::string_view title) const {
  return cat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"",
             width, "\" height=\"", height, "\" viewBox=\"0 0 ", width, " ", height,
             "\" font-family=\"sans-serif\">\n<title>", xml_text(title),
             "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", body_, "</svg>\n");
}

}  // namespace muster
