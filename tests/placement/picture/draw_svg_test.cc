#include "muster/placement/picture/draw_svg.h"

#include <gmock/gmock.h>

#include <cstring>
#include <pugixml.hpp>
#include <set>

#include "muster/base/strings.h"
#include "tests/placement/picture/machines.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

struct Rect {
  int x, y, width, height;
};

// A picture, read back.
class Picture {
 public:
  explicit Picture(const std::string& svg) {
    const auto result = document_.load_buffer(svg.data(), svg.size());
    EXPECT_TRUE(result) << result.description() << " at " << result.offset;
    root_ = document_.child("svg");
    width_ = root_.attribute("width").as_int();
    height_ = root_.attribute("height").as_int();
  }

  std::vector<Rect> boxes(const char* kind) const {
    std::vector<Rect> rects;
    for (const pugi::xml_node node : root_.children("rect")) {
      if (std::strcmp(node.attribute("class").value(), kind) != 0)
        continue;
      rects.push_back({node.attribute("x").as_int(),
                       node.attribute("y").as_int(),
                       node.attribute("width").as_int(),
                       node.attribute("height").as_int()});
    }
    return rects;
  }

  std::vector<std::string> texts() const {
    std::vector<std::string> texts;
    for (const pugi::xml_node node : root_.children("text"))
      texts.emplace_back(node.child_value());
    return texts;
  }

  std::multiset<std::string> texts_beginning(const std::string& prefix) const {
    std::multiset<std::string> found;
    for (const std::string& text : texts()) {
      if (text.starts_with(prefix))
        found.insert(text);
    }
    return found;
  }

  size_t num_links() const {
    size_t count = 0;
    for (const pugi::xml_node node : root_.children("path")) {
      count += std::strcmp(node.attribute("class").value(), "link") == 0 ? 1 : 0;
    }
    return count;
  }

  void expect_tidy() const {
    for (const char* kind : {"gpu", "nic", "numa", "socket", "pcie", "core", "rank"})
      expect_apart(kind);
    expect_inside("gpu", "numa");
    expect_inside("numa", "socket");
    expect_inside("core", "numa");
    expect_inside("nic", "numa");
    expect_lines_apart();
  }

  void expect_apart(const char* kind) const {
    const auto list = boxes(kind);
    for (size_t i = 0; i < list.size(); ++i) {
      const Rect& a = list[i];
      EXPECT_TRUE(a.x >= 0 && a.y >= 0 && a.x + a.width <= width_ && a.y + a.height <= height_)
          << kind << ' ' << i;
      for (size_t j = i + 1; j < list.size(); ++j) {
        const Rect& b = list[j];
        const bool apart = a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y ||
                           b.y + b.height <= a.y;
        EXPECT_TRUE(apart) << kind << ' ' << i << " and " << j;
      }
    }
  }

  void expect_inside(const char* inner, const char* outer) const {
    const auto around = boxes(outer);
    if (around.empty())
      return;
    for (const Rect& a : boxes(inner)) {
      const bool inside = std::any_of(around.begin(), around.end(), [&](const Rect& b) {
        return a.x >= b.x && a.y >= b.y && a.x + a.width <= b.x + b.width &&
               a.y + a.height <= b.y + b.height;
      });
      EXPECT_TRUE(inside) << inner << " at " << a.x << ' ' << a.y;
    }
  }

  // No two links begin at the same point of a GPU.
  void expect_lines_apart() const {
    std::set<std::string> starts;
    for (const pugi::xml_node node : root_.children("path")) {
      if (std::strcmp(node.attribute("class").value(), "link") != 0)
        continue;
      const std::string path = node.attribute("d").value();
      EXPECT_TRUE(starts.insert(path.substr(0, path.find('V'))).second) << path;
    }
  }

 private:
  pugi::xml_document document_;
  pugi::xml_node root_;
  int width_ = 0;
  int height_ = 0;
};

TEST(DrawSvg, EveryPartOfASwitchedMachine) {
  const Picture picture(draw_svg(svg_switched(8)));
  picture.expect_tidy();
  EXPECT_EQ(picture.boxes("gpu").size(), 8U);
  EXPECT_EQ(picture.boxes("nic").size(), 8U);
  EXPECT_EQ(picture.boxes("pcie").size(), 4U);
  EXPECT_EQ(picture.boxes("numa").size(), 2U);
  EXPECT_EQ(picture.boxes("socket").size(), 2U);
  EXPECT_EQ(picture.boxes("core").size(), 96U);
  EXPECT_EQ(picture.num_links(), 8U);  // to one bar
  EXPECT_EQ(picture.texts_beginning("NV18 between any two of these 8 GPUs").size(), 1U);
  EXPECT_EQ(picture.texts_beginning("NV18: NVLink, 18 links, about 450 GB/s each way").size(), 1U);
  for (int gpu = 0; gpu < 8; ++gpu)
    EXPECT_EQ(picture.texts_beginning(cat("GPU ", gpu)).size(), 1U) << gpu;
}

TEST(DrawSvg, LinksThatDifferAreLines) {
  const Picture picture(draw_svg(svg_cube_mesh()));
  picture.expect_tidy();
  EXPECT_EQ(picture.num_links(), 16U + 8U);  // NVLinks, and each GPU to the bar of the rest
  EXPECT_EQ(picture.texts_beginning("NV1").size(), 9U);  // eight lines and the legend
  EXPECT_EQ(picture.texts_beginning("NV2").size(), 9U);
  EXPECT_EQ(
      picture.texts_beginning("SYS between any two of these 8 GPUs where no nearer link").size(),
      1U);
  EXPECT_EQ(picture.texts_beginning("SYS: across NUMA nodes").size(), 1U);
}

TEST(DrawSvg, SixteenGpusAndPlainPcie) {
  const Picture switched(draw_svg(svg_switched(16)));
  switched.expect_tidy();
  EXPECT_EQ(switched.boxes("gpu").size(), 16U);
  const Picture pcie(draw_svg(svg_pcie(8)));
  pcie.expect_tidy();
  EXPECT_EQ(pcie.boxes("pcie").size(), 4U);
  EXPECT_EQ(pcie.texts_beginning("NODE between any two of these 4 GPUs").size(), 2U);
  const Picture plain(draw_svg(svg_pcie(16)));
  plain.expect_tidy();
  EXPECT_EQ(plain.num_links(), 8U + 16U + 16U);  // PIX, NODE, SYS
}

TEST(DrawSvg, RanksAreOnTheirGpus) {
  const Host host = svg_switched(8);
  const Plan plan = svg_plan(host, {3, 1, 0, 2, 3, 3});
  const Picture picture(draw_svg(host, &plan));
  picture.expect_tidy();
  for (int rank = 0; rank < 6; ++rank)
    EXPECT_EQ(picture.texts_beginning(cat("rank ", rank)).size(), 1U) << rank;
  picture.expect_inside("rank", "gpu");
  const auto gpus = picture.boxes("gpu");
  size_t on_gpu_3 = 0;
  for (const Rect& rank : picture.boxes("rank")) {
    on_gpu_3 += rank.x >= gpus[3].x && rank.x < gpus[3].x + gpus[3].width ? 1 : 0;
  }
  EXPECT_EQ(on_gpu_3, 3U);
  EXPECT_EQ(picture.texts_beginning("core that a rank is bound to").size(), 1U);
}

TEST(DrawSvg, ManyRanksOnOneGpu) {
  const Host host = svg_pcie(2);
  const Plan plan = svg_plan(host, {0, 1, 0, 0, 0, 0, 0});
  const Picture picture(draw_svg(host, &plan));
  picture.expect_tidy();
  EXPECT_EQ(picture.texts_beginning("ranks 0,2-6").size(), 1U);
  EXPECT_EQ(picture.texts_beginning("rank 1").size(), 1U);
}

TEST(DrawSvg, RanksOnTheCpu) {
  const Host host = svg_pcie(2);
  const Plan plan = svg_plan(host, {0, -1, 1, -1, -1, -1, -1, -1, -1});
  const Picture picture(draw_svg(host, &plan));
  picture.expect_tidy();
  EXPECT_EQ(picture.texts_beginning("rank 1: cpu:0").size(), 1U);
  EXPECT_EQ(picture.texts_beginning("and 2 more").size(), 1U);
}

TEST(DrawSvg, AHostOfWhichLittleIsKnown) {
  Host host{.name = "plain", .gpu_note = "no driver"};
  const Picture none(draw_svg(host));
  none.expect_tidy();
  EXPECT_EQ(none.texts_beginning("0 GPUs, 1 core; no driver").size(), 1U);
  host.gpus.resize(3);
  host.gpus[1].health = "GPU is lost & gone";
  const Picture bare(draw_svg(host));
  bare.expect_tidy();
  EXPECT_EQ(bare.boxes("gpu").size(), 3U);
  EXPECT_EQ(bare.texts_beginning("links between GPUs: not known").size(), 1U);
  EXPECT_EQ(bare.texts_beginning("GPU is lost & gone").size(), 1U);
}

// A matrix that is smaller or larger than the machine (a damaged file) is read as far as it goes.
TEST(DrawSvg, ARaggedMatrix) {
  Host host = svg_switched(4);
  host.gpu_links.resize(2);
  host.gpu_links[1].resize(9, {LinkKind::pix, 0});
  host.nic_links[0].resize(40, {LinkKind::pix, 0});
  host.nic_links.resize(30);
  Picture(draw_svg(host)).expect_tidy();
}

TEST(DrawSvg, HostileNamesStayText) {
  Host host = svg_pcie(2);
  const std::string evil =
      "</text><script>alert('1')</script>&lol;\"\x01\x1b[2J\xff\xc0\x80\xed\xa0\x80\xe2\x80\xae]]>";
  host.name = evil;
  host.driver_version = evil;
  host.gpus[0].model = evil;
  host.gpus[0].uuid.value = evil;
  host.gpus[0].pci.value = evil;
  host.gpus[1].health = evil;
  host.nics.push_back({.name = evil, .pci = {}, .numa_node = 0});
  Plan plan = svg_plan(host, {0, -1});
  plan.policy = evil;
  plan.ranks[1].reason = evil;
  const std::string svg = draw_svg(host, &plan);
  const Picture picture(svg);
  picture.expect_tidy();
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_EQ(svg.find_first_of(std::string("\x01\x1b\xff\xc0\x00", 5)), std::string::npos);
  EXPECT_THAT(svg, HasSubstr("&lt;/text&gt;&lt;script&gt;"));
  EXPECT_THAT(picture.texts_beginning("host </text><script>alert"), Not(IsEmpty()));
}

TEST(DrawSvg, LongNamesAreCut) {
  Host host = svg_pcie(2);
  host.name = std::string(100'000, 'n');
  for (int i = 0; i < 400; ++i)
    host.name += "ä";
  const std::string svg = draw_svg(host);
  for (const std::string& text : Picture(svg).texts())
    EXPECT_LE(text.size(), 250U);
}

TEST(DrawSvg, SameValuesSamePicture) {
  const Host host = svg_cube_mesh();
  const Plan plan = svg_plan(host, {0, 3, 2, 1});
  EXPECT_EQ(draw_svg(host, &plan), draw_svg(host, &plan));
  EXPECT_NE(draw_svg(host, &plan), draw_svg(host));
}

TEST(DrawSvg, HostsOneBelowTheOther) {
  Inventory inventory{.hosts = {svg_switched(2), svg_pcie(4), svg_pcie(2)}};
  inventory.hosts[1].name = "second";
  inventory.hosts[2].name = "third";
  const Picture all(draw_svg(inventory));
  all.expect_tidy();
  EXPECT_EQ(all.boxes("gpu").size(), 8U);
  const Plan plan = svg_plan(inventory.hosts[1], {0, 1});
  const Picture used(draw_svg(inventory, &plan));
  used.expect_tidy();
  EXPECT_EQ(used.boxes("gpu").size(), 4U);
  const Picture few(draw_svg(inventory, nullptr, {.max_hosts = 1}));
  few.expect_tidy();
  EXPECT_EQ(few.texts_beginning("and 2 more hosts").size(), 1U);
}

}  // namespace
}  // namespace muster
