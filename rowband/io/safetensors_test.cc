#include "rowband/io/safetensors.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>

#include "rowband/io/test_support.h"

namespace rowband {
namespace {

using test::as_bytes;
using test::expect_error;
using test::little_endian;
using test::safetensors;
using test::TempDir;
using test::write_file;

std::shared_ptr<const SafetensorsFile> parse(std::string_view bytes) {
  return SafetensorsFile::from_bytes(as_bytes(bytes), "weights.safetensors");
}

// `bytes` are refused as badly formed, by file name and `words`, from memory and from disk alike.
void expect_refused(const std::string& bytes, std::vector<std::string> words) {
  words.push_back("weights.safetensors");
  expect_error(ErrorCode::kFormat, words, [&] { parse(bytes); });
  const TempDir dir;
  write_file(dir / "weights.safetensors", bytes);
  expect_error(ErrorCode::kFormat, words,
               [&] { SafetensorsFile::open(dir / "weights.safetensors"); });
}

std::string one_tensor(const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
  return R"({"x":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string bytes = safetensors(
      R"({"b":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[4,8]},)"
      R"("__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"note":{"by":[1,{"deep":null}]}}})",
      "12345678");
  const auto file = parse(bytes);
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->tensors()[0].name, "a");
  EXPECT_EQ(file->tensors()[1].name, "b");
  EXPECT_EQ(file->find("c"), nullptr);
  EXPECT_EQ(file->find("__metadata__"), nullptr);
  const TensorInfo* b = file->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::kF8E4m3);
  EXPECT_EQ(b->dtype_name, "F8_E4M3");
  EXPECT_EQ(b->shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_TRUE(std::ranges::equal(b->data, as_bytes("5678")));
}

TEST(Safetensors, ReadsFileWithoutTensors) {
  EXPECT_TRUE(parse(safetensors("{}"))->tensors().empty());
  EXPECT_TRUE(parse(safetensors(R"({"__metadata__":{}})"))->tensors().empty());
}

TEST(Safetensors, F01_HeaderAboveTheLimitIsRefusedWithoutAllocating) {
  std::string bytes("\x40\x9D\xDF\x07\x00\x00\x00\x00", 8);
  expect_refused(bytes + "{}", {"132095296", "100000000", "100 MB"});
  expect_refused(std::string(8, '\xFF') + "{}", {"18446744073709551615", "100 MB"});
  // Below the limit, but not there.
  expect_refused(little_endian(99'000'000) + "{}", {"99000000", "only 2 bytes follow"});
}

TEST(Safetensors, F02_OtherFormatsAreNamed) {
  expect_refused(std::string("PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00", 12), {"zip archive"});
  expect_refused("PK\x03\x04", {"zip archive"});
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
                 {"git-lfs pointer", "git lfs pull"});
  expect_refused("\x80\x02}q\x01X\x06weight", {"pickle"});
  expect_refused("<!DOCTYPE html><html></html>", {"HTML"});
  expect_refused(R"({"weight_map":{}})", {"JSON text"});
}

TEST(Safetensors, EmptyAndShortFilesAreRefused) {
  expect_refused("", {"empty"});
  expect_refused("\x02", {"only 1 bytes"});
  expect_refused(std::string(8, '\0'), {"does not begin with '{'"});
}

TEST(Safetensors, F04_DuplicateNamesAreNamed) {
  const std::string same = R"("x.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string other = R"("x.weight":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})";
  expect_refused(safetensors("{" + same + "," + same + "}", "1234"), {"duplicate", "x.weight"});
  expect_refused(safetensors("{" + same + "," + other + "}", "12345678"),
                 {"duplicate", "x.weight"});
  expect_refused(
      safetensors(R"({"x":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}})",
                  "1234"),
      {"duplicate field dtype", "'x'"});
}

TEST(Safetensors, F05_ShapeAndByteRangeDisagree) {
  const std::string header = R"({"weight":{"dtype":"F64","shape":[4],"data_offsets":[0,16]}})";
  const std::string bytes =
      little_endian(67) + header + std::string(67 - header.size(), ' ') + std::string(16, '\0');
  ASSERT_EQ(bytes.size(), 91u);
  expect_refused(bytes, {"weight", "F64 [4]", "32", "16"});
}

TEST(Safetensors, F07_EmptyTensorsAreLegalWhenTheirShapeSaysSo) {
  const auto file =
      parse(safetensors(R"({"none":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                        R"("some":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                        R"("last":{"dtype":"BF16","shape":[3,0,2],"data_offsets":[4,4]}})",
                        "1234"));
  ASSERT_NE(file->find("none"), nullptr);
  EXPECT_TRUE(file->find("none")->data.empty());
  EXPECT_EQ(file->find("some")->data.size(), 4u);
  EXPECT_TRUE(file->find("last")->data.empty());
  expect_refused(safetensors(one_tensor("F32", "[1]", "[0,0]")), {"needs 4 bytes", "has 0"});
}

TEST(Safetensors, F09_TensorLargerThanItsBytes) {
  expect_refused(safetensors(one_tensor("F32", "[1000,1000]", "[0,4]"), "1234"),
                 {"'x'", "needs 4000000 bytes", "has 4"});
}

TEST(Safetensors, F11_TrailingBytesAreRefused) {
  expect_refused(safetensors(one_tensor("F32", "[1]", "[0,4]"), "12345"), {"1 trailing bytes"});
}

TEST(Safetensors, F16_FileAndBytesGiveTheSame) {
  const std::string header = R"({"q":{"dtype":"F4","shape":[3,2],"data_offsets":[5,8]},)"
                             R"("new":{"dtype":"F2_FUTURE","shape":[9],"data_offsets":[8,10]},)"
                             R"("s":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[0,1]},)"
                             R"("w":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[1,5]}})";
  const std::string bytes = safetensors(header, "ABCDEFGHIJ");
  const TempDir dir;
  write_file(dir / "f.safetensors", bytes);
  for (const auto& file : {parse(bytes), SafetensorsFile::open(dir / "f.safetensors")}) {
    EXPECT_EQ(file->find("s")->dtype, DType::kF8E8m0);
    EXPECT_TRUE(std::ranges::equal(file->find("s")->data, as_bytes("A")));
    EXPECT_EQ(file->find("w")->dtype, DType::kF8E4m3);
    EXPECT_TRUE(std::ranges::equal(file->find("w")->data, as_bytes("BCDE")));
    EXPECT_EQ(file->find("q")->dtype, DType::kOther);
    EXPECT_EQ(file->find("q")->dtype_name, "F4");
    EXPECT_EQ(file->find("new")->dtype_name, "F2_FUTURE");
    EXPECT_EQ(file->find("new")->data.size(), 2u);
  }
}

TEST(Safetensors, SubByteShapesMustFillWholeBytes) {
  expect_refused(safetensors(one_tensor("F4", "[3]", "[0,2]"), "12"), {"F4 [3]", "12 bits"});
}

TEST(Safetensors, F17_HeaderPadding) {
  const std::string header = one_tensor("F32", "[1]", "[0,4]");
  for (const char blank : {' ', '\t', '\n', '\r'}) {
    for (std::size_t count = 1; count <= 8; ++count) {
      // All remainders modulo 8 occur, so the data lies at odd addresses too.
      const std::string pad(count, blank);
      for (const std::string& padded : {header + pad, pad + header}) {
        const std::string bytes = safetensors(padded, "1234");
        const auto file = parse(bytes);
        EXPECT_TRUE(std::ranges::equal(file->find("x")->data, as_bytes("1234")));
      }
    }
  }
  expect_refused(safetensors(header + std::string(3, '\0'), "1234"), {"NUL", "blanks"});
  expect_refused(safetensors(std::string(1, '\0') + header, "1234"), {"NUL byte at byte 0"});
  // A parser that stops at the NUL would not see the rest.
  expect_refused(safetensors(header + std::string("\0garbage", 8), "1234"), {"NUL"});
  expect_refused(safetensors("\xEF\xBB\xBF" + header, "1234"), {"does not begin with '{'"});
}

TEST(Safetensors, ShapesMustBeWholeNonNegativeAndNotOverflow) {
  expect_refused(safetensors(one_tensor("F32", "[-3]", "[0,0]")), {"'x'", "shape holds -3"});
  expect_refused(safetensors(one_tensor("F32", "[1.0]", "[0,4]"), "1234"), {"shape holds 1.0"});
  expect_refused(safetensors(one_tensor("F32", "[9223372036854775808]", "[0,4]"), "1234"),
                 {"9223372036854775808"});
  expect_refused(safetensors(one_tensor("F32", "[99999999999999999999]", "[0,4]"), "1234"),
                 {"99999999999999999999"});
  // Both sizes would wrap to 0, which is what data_offsets says.
  expect_refused(safetensors(one_tensor("F32", "[4294967296,4294967296]", "[0,0]")), {"overflows"});
  expect_refused(safetensors(one_tensor("F8_E4M3", "[4611686018427387904,4]", "[0,0]")),
                 {"overflows"});
}

TEST(Safetensors, OffsetsMustCoverTheDataOnce) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  EXPECT_NO_THROW(parse(safetensors(two("[4,8]", "[0,4]"), "12345678")));
  expect_refused(safetensors(two("[0,4]", "[2,6]"), "123456"), {"'b'", "overlaps", "'a'"});
  expect_refused(safetensors(two("[0,4]", "[0,4]"), "1234"), {"'b'", "overlaps", "'a'"});
  expect_refused(safetensors(two("[0,4]", "[5,9]"), "123456789"),
                 {"bytes 4 to 5", "'b'", "no tensor"});
  expect_refused(safetensors(two("[1,5]", "[5,9]"), "123456789"), {"bytes 0 to 1", "'a'"});
  expect_refused(safetensors(two("[0,4]", "[4,8]"), "1234567"), {"'b'", "past the 7 bytes"});
  expect_refused(safetensors(two("[0,4]", "[8,4]"), "12345678"), {"'b'", "end before they begin"});
  expect_refused(safetensors(two("[0,4]", "[4,18446744073709551616]"), "12345678"),
                 {"'b'", "18446744073709551616"});
  expect_refused(safetensors(two("[0,4]", "[-4,0]"), "12345678"), {"'b'", "holds -4"});
  expect_refused(safetensors(two("[0,4]", "[4]"), "12345678"), {"'b'", "has 1 numbers"});
  expect_refused(safetensors(two("[0,4]", "[4,8,12]"), "12345678"), {"'b'", "has 3 numbers"});
}

TEST(Safetensors, HeadersOfAnotherStructureAreRefused) {
  expect_refused(safetensors("[]"), {"does not begin with '{'"});
  expect_refused(safetensors(R"({"x":)"), {"not valid JSON"});
  expect_refused(safetensors(R"({} {})"), {"not valid JSON"});
  expect_refused(safetensors(R"({"x":3})"), {"'x'", "its entry is a number"});
  expect_refused(safetensors(R"({"x":{}})"), {"'x'", "dtype is missing"});
  expect_refused(safetensors(R"({"x":{"dtype":"F32","shape":[1]}})"), {"data_offsets is missing"});
  expect_refused(safetensors(R"({"x":{"dtype":7}})"), {"dtype is a number"});
  expect_refused(safetensors(R"({"x":{"shape":"[1]"}})"), {"shape is a string"});
  expect_refused(safetensors(R"({"x":{"shape":[[1]]}})"), {"an item of shape is an array"});
  expect_refused(safetensors(R"({"x":{"shape":[true]}})"), {"an item of shape is a boolean"});
  expect_refused(safetensors(R"({"x":{"data_offsets":{}}})"), {"data_offsets is an object"});
  expect_refused(safetensors(R"({"__metadata__":[]})"), {"__metadata__", "an array"});
  expect_refused(safetensors(R"({"__metadata__":{"a":1}})"), {"__metadata__", "a number"});
  expect_refused(safetensors("{\"a\xFF\":{}}"), {"not valid JSON"});
}

TEST(Safetensors, HostileNamesAreEscapedAndCutInMessages) {
  const std::string name = "evil\\nline" + std::string(5000, 'a');
  try {
    parse(safetensors("{\"" + name + "\":{}}"));
    FAIL() << "accepted an entry without fields";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_LT(message.size(), 400u);
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_NE(message.find("evil\\x0aline"), std::string::npos) << message;
  }
}

TEST(Safetensors, DeepNestingInUnknownFieldsDoesNotOverflowTheStack) {
  const std::size_t depth = 1'000'000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  const std::string bytes = safetensors(
      R"({"x":{"dtype":"U8","shape":[1],"other":)" + deep + R"(,"data_offsets":[0,1]}})", "1");
  EXPECT_EQ(parse(bytes)->tensors().size(), 1u);
}

TEST(Safetensors, SystemErrorsNameTheFile) {
  const TempDir dir;
  expect_error(ErrorCode::kIo, {"missing.safetensors", "No such file"},
               [&] { SafetensorsFile::open(dir / "missing.safetensors"); });
  std::filesystem::create_directory(dir / "folder.safetensors");
  expect_error(ErrorCode::kIo, {"folder.safetensors", "a directory"},
               [&] { SafetensorsFile::open(dir / "folder.safetensors"); });
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_error(ErrorCode::kIo, {"a pipe"}, [&] { SafetensorsFile::open(dir / "pipe"); });
  expect_error(ErrorCode::kIo, {"/dev/zero", "a device"},
               [&] { SafetensorsFile::open("/dev/zero"); });
}

TEST(Safetensors, UnreadableFileNamesThePermission) {
  const TempDir dir;
  write_file(dir / "f.safetensors", safetensors("{}"));
  ASSERT_EQ(::chmod((dir / "f.safetensors").c_str(), 0), 0);
  const test::Unprivileged unprivileged;
  expect_error(ErrorCode::kIo, {"f.safetensors", "Permission denied"},
               [&] { SafetensorsFile::open(dir / "f.safetensors"); });
}

TEST(Safetensors, DataOutlivesTheDeletedFile) {
  const TempDir dir;
  write_file(dir / "f.safetensors", safetensors(one_tensor("F32", "[1]", "[0,4]"), "1234"));
  const auto file = SafetensorsFile::open(dir / "f.safetensors");
  std::filesystem::remove(dir / "f.safetensors");
  EXPECT_TRUE(std::ranges::equal(file->find("x")->data, as_bytes("1234")));
}

TEST(SafetensorsWriter, WhatIsWrittenIsRead) {
  const TempDir dir;
  const std::array<float, 3> floats{1.0f, -2.0f, 0.5f};
  const std::array<TensorToWrite, 3> tensors{
      TensorToWrite{"codes", DType::kF8E4m3, {1, 3}, as_bytes("abc")},
      TensorToWrite{"empty", DType::kBf16, {0, 7}, {}},
      TensorToWrite{"scales", DType::kF32, {3}, std::as_bytes(std::span(floats))}};
  write_safetensors(dir / "out.safetensors", tensors);
  const auto file = SafetensorsFile::open(dir / "out.safetensors");
  ASSERT_EQ(file->tensors().size(), 3u);
  for (const TensorToWrite& wanted : tensors) {
    const TensorInfo* got = file->find(wanted.name);
    ASSERT_NE(got, nullptr) << wanted.name;
    EXPECT_EQ(got->dtype, wanted.dtype);
    EXPECT_EQ(got->shape, wanted.shape);
    EXPECT_TRUE(std::ranges::equal(got->data, wanted.data));
  }
  EXPECT_EQ(dir.listing(), std::vector<std::string>{"out.safetensors"});
}

TEST(SafetensorsWriter, TensorsLieAtMultiplesOfTheirElementSize) {
  const TempDir dir;
  const std::array<TensorToWrite, 2> tensors{
      TensorToWrite{"odd", DType::kF8E4m3, {3}, as_bytes("abc")},
      TensorToWrite{"wide", DType::kF32, {1}, as_bytes("1234")}};
  write_safetensors(dir / "out.safetensors", tensors);
  const std::string bytes = test::read_file(dir / "out.safetensors");
  std::uint64_t header_length = 0;
  std::memcpy(&header_length, bytes.data(), 8);
  EXPECT_EQ(header_length % 8, 0u);
  const auto file = parse(bytes);
  EXPECT_EQ((file->find("wide")->data.data() - as_bytes(bytes).data()) % 4, 0);
}

TEST(SafetensorsWriter, ReplacesAFileAndKeepsItWhenWritingFails) {
  const TempDir dir;
  write_file(dir / "out.safetensors", "old");
  const std::array<TensorToWrite, 1> bad{TensorToWrite{"x", DType::kF32, {2}, as_bytes("1234")}};
  expect_error(ErrorCode::kInvalidArgument, {"'x'", "F32 [2]", "8 bytes", "got 4"},
               [&] { write_safetensors(dir / "out.safetensors", bad); });
  EXPECT_EQ(test::read_file(dir / "out.safetensors"), "old");
  EXPECT_EQ(dir.listing().size(), 1u);
  const std::array<TensorToWrite, 1> good{TensorToWrite{"x", DType::kF32, {1}, as_bytes("1234")}};
  write_safetensors(dir / "out.safetensors", good);
  EXPECT_EQ(SafetensorsFile::open(dir / "out.safetensors")->tensors().size(), 1u);
}

TEST(SafetensorsWriter, UnwritableDirectoryNamesThePermission) {
  const TempDir dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0555), 0);
  const std::array<TensorToWrite, 1> one{TensorToWrite{"x", DType::kF32, {1}, as_bytes("1234")}};
  const test::Unprivileged unprivileged;
  expect_error(ErrorCode::kIo, {"out.safetensors", "Permission denied"},
               [&] { write_safetensors(dir / "out.safetensors", one); });
}

TEST(SafetensorsWriter, RefusesNamesThatCannotBeReadBack) {
  const TempDir dir;
  const auto write = [&](const std::vector<std::string>& names) {
    std::vector<TensorToWrite> tensors;
    for (const auto& name : names) tensors.push_back({name, DType::kF32, {1}, as_bytes("1234")});
    write_safetensors(dir / "out.safetensors", tensors);
  };
  expect_error(ErrorCode::kInvalidArgument, {"duplicate", "'a'"}, [&] { write({"a", "a"}); });
  expect_error(ErrorCode::kInvalidArgument, {"__metadata__"}, [&] { write({"__metadata__"}); });
  expect_error(ErrorCode::kInvalidArgument, {"UTF-8"}, [&] { write({"a\xFF"}); });
  expect_error(ErrorCode::kInvalidArgument, {"only by name"}, [&] {
    const std::array<TensorToWrite, 1> other{TensorToWrite{"x", DType::kOther, {1}, as_bytes("1")}};
    write_safetensors(dir / "out.safetensors", other);
  });
  EXPECT_TRUE(dir.listing().empty());
}

TEST(SafetensorsWriter, SystemErrorsNameTheFileAndLeaveNothing) {
  const TempDir dir;
  const std::array<TensorToWrite, 1> one{TensorToWrite{"x", DType::kF32, {1}, as_bytes("1234")}};
  expect_error(ErrorCode::kIo, {"out.safetensors", "No such file"},
               [&] { write_safetensors(dir / "missing/out.safetensors", one); });
  std::filesystem::create_directory(dir / "taken.safetensors");
  expect_error(ErrorCode::kIo, {"taken.safetensors", "rename"},
               [&] { write_safetensors(dir / "taken.safetensors", one); });
  EXPECT_EQ(dir.listing(), std::vector<std::string>{"taken.safetensors"});
}

}  // namespace
}  // namespace rowband
