#include "rowband/trace/xml_text.h"

#include <gtest/gtest.h>

namespace rowband {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

TEST(XmlText, EscapesMarkup) {
  EXPECT_EQ(xml_text("a<b>&\"c\"'d'"), "a&lt;b&gt;&amp;&quot;c&quot;&apos;d&apos;");
  EXPECT_EQ(xml_text("&amp;"), "&amp;amp;");
}

TEST(XmlText, KeepsUnicodeTabAndNewline) {
  EXPECT_EQ(xml_text("\xC3\xA9\t\xF0\x9F\x98\x80\n\\"), "\xC3\xA9\t\xF0\x9F\x98\x80\n\\");
}

TEST(XmlText, ReplacesWhatNoDocumentMayHold) {
  EXPECT_EQ(xml_text(std::string("a\0b", 3)), std::string("a") + kReplacement + "b");
  EXPECT_EQ(xml_text("\x1B[1m"), std::string(kReplacement) + "[1m");
  EXPECT_EQ(xml_text("\xEF\xBF\xBE|\xEF\xBF\xBF"), std::string(kReplacement) + "|" + kReplacement);
  EXPECT_EQ(xml_text("x\xFFy"), std::string("x") + kReplacement + "y");
  EXPECT_EQ(xml_text("cut \xE2\x82"), std::string("cut ") + kReplacement);
}

TEST(Shorten, CountsCharactersNotBytes) {
  const std::string accents = "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9";
  EXPECT_EQ(count_characters(accents), 4U);
  EXPECT_EQ(shorten(accents, 4), accents);
  EXPECT_EQ(shorten(accents, 3), "\xC3\xA9\xC3\xA9\xE2\x80\xA6");
  EXPECT_EQ(shorten("worker", 1), "\xE2\x80\xA6");
  EXPECT_EQ(shorten("", 1), "");
}

}  // namespace
}  // namespace rowband
