#include "muster/device/readers/xml_file.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"
#include "muster/device/readers/xml_root.h"
#include "tests/device/readers/errors.h"

namespace muster {
namespace {

using testing::HasSubstr;

std::string xml_error(const std::string& text) {
  return error_of([&] {
    const std::string what = "inventory f";
    const XmlFile file(text, what);
  });
}

TEST(XmlFile, ErrorsNameTheLine) {
  EXPECT_THAT(xml_error("<a>\n<b>\n</c>\n</a>"),
              testing::StartsWith("inventory f: expected XML, got "));
  EXPECT_THAT(xml_error("<a>\n<b>\n</c>\n</a>"), HasSubstr("(line 3)"));
  EXPECT_THAT(xml_error("<a>\n<b>\n</c>\n</a>\nend <"), HasSubstr("(line 3)")) << "it is whole";
  EXPECT_THAT(xml_error(""), HasSubstr("(line 1)"));
  EXPECT_THAT(xml_error("<a>\n\n<b"), HasSubstr("(line 3)"));
}

TEST(XmlFile, BoundsHold) {
  EXPECT_THAT(xml_error(cat("<a>", std::string(3, '\0'), "</a>")), HasSubstr("zero byte"));
  std::string deep = "<a>";
  for (int i = 0; i < 1000; ++i)
    deep += "<b>";
  for (int i = 0; i < 1000; ++i)
    deep += "</b>";
  EXPECT_THAT(xml_error(deep + "</a>"), HasSubstr("nested at most 128 levels"));
  std::string many = "<a>";
  for (int i = 0; i < 2'000'001; ++i)
    many += "<b/>";
  EXPECT_THAT(xml_error(many + "</a>"), HasSubstr("at most 2000000 '<'"));
}

TEST(XmlFile, EntitiesAreNotExpanded) {
  const std::string what = "f";
  const std::string text =
      "<!DOCTYPE a [<!ENTITY b \"bbb\"><!ENTITY c SYSTEM "
      "\"file:///etc/passwd\">]><a>&b;&c;&lt;</a>";
  EXPECT_STREQ(XmlFile(text, what).root().text().get(), "&b;&c;<");
}

TEST(XmlFile, Numbers) {
  const std::string what = "f";
  const std::string text = "<a b='7' c='x'\n d='99999999999999999999'/>";
  const XmlFile file(text, what);
  EXPECT_EQ(file.integer(file.root(), "b", 0, 9), 7);
  EXPECT_EQ(file.integer(file.root(), "z", 0, 9), std::nullopt);
  for (const char* const bad : {"c", "d"}) {
    EXPECT_THAT(error_of([&] { file.integer(file.root(), bad, 0, 9); }),
                HasSubstr("an integer from 0 to 9"))
        << bad;
  }
  EXPECT_THAT(error_of([&] { file.integer(file.root(), "b", 0, 6); }), HasSubstr("got '7'"));
}

TEST(XmlRoot, BehindWhateverStandsBefore) {
  EXPECT_EQ(xml_root_name("<topology version='2.0'>"), "topology");
  EXPECT_EQ(xml_root_name("\xef\xbb\xbf <?xml version='1.0'?>\n<!DOCTYPE x SYSTEM \"x.dtd\">\n<!-- "
                          "<no> -->\n<system>"),
            "system");
  EXPECT_EQ(xml_root_name("<!DOCTYPE x [\n<!ENTITY a 'b'>\n]><x/>"), "x");
  for (const char* const none : {"", "{", "<", "<!--", "<!DOCTYPE x [", "<?xml", "plain", "<>"}) {
    EXPECT_EQ(xml_root_name(none), "") << none;
  }
}

}  // namespace
}  // namespace muster
