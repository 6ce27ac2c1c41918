// A picture as SVG text: boxes, lines and words at whole coordinates, every text escaped. The
// canvas knows nothing of what is drawn. A private header.
#pragma once

#include <string>
#include <string_view>

namespace muster {

struct SvgBox {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;
  int right() const { return x + width; }
  int bottom() const { return y + height; }
  int middle() const { return x + width / 2; }
};

struct SvgStyle {
  const char* fill = "none";
  const char* stroke = "none";
  double stroke_width = 1;
  const char* dashes = "";  // "4 3"
  int radius = 0;           // of a box's corners
};

enum class SvgAlign { left, middle, right };

struct SvgFont {
  int size = 11;
  bool bold = false;
  const char* fill = "#212529";
  SvgAlign align = SvgAlign::left;
};

class SvgCanvas {
 public:
  // `kind` becomes the class attribute, for scripts and tests; `name` is shown where the pointer
  // rests.
  void box(const SvgBox& box,
           const SvgStyle& style,
           const char* kind = "",
           std::string_view name = {});
  void path(const std::string& commands,
            const SvgStyle& style,
            const char* kind = "",
            std::string_view name = {});
  void text(int x, int baseline, std::string_view text, const SvgFont& font = {});

  // The whole document, on white.
  std::string finish(int width, int height, std::string_view title) const;

 private:
  std::string body_;
};

}  // namespace muster
