#include "rowband/io/matrix_file.h"

#include <sys/stat.h>

#include <array>
#include <limits>

#include "rowband/io/safetensors.h"
#include "rowband/io/test_support.h"

namespace rowband {
namespace {

using test::expect_error;
using test::TempDir;
using test::write_file;

// A .npy file with this dictionary, of version `major`.
std::string npy(const std::string& dictionary, std::string_view data, int major = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  bytes += test::little_endian(dictionary.size()).substr(0, major == 1 ? 2 : 4);
  return bytes + dictionary + std::string(data);
}

std::string dictionary(const std::string& descr, const std::string& shape,
                       const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

Bf16Matrix parse(const std::string& bytes) {
  return parse_npy(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "x.npy");
}

void expect_refused(const std::string& bytes, std::vector<std::string> words) {
  words.push_back("x.npy");
  expect_error(ErrorCode::kFormat, words, [&] { parse(bytes); });
}

std::vector<float> floats(const Bf16Matrix& matrix) {
  std::vector<float> values;
  for (const Bf16 value : matrix.values) values.push_back(to_float(value));
  return values;
}

TEST(Npy, ReadsEveryVersion) {
  for (const int major : {1, 2, 3}) {
    const auto matrix =
        parse(npy(dictionary("<f4", "(2, 3)"), raw<float>({1, 2, 3, 4, 5, 6}), major));
    EXPECT_EQ(matrix.rows, 2);
    EXPECT_EQ(matrix.cols, 3);
    EXPECT_EQ(floats(matrix), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  }
}

TEST(Npy, FloatsAreRoundedToNearestEven) {
  const auto matrix = parse(
      npy(dictionary("<f4", "(1, 4)"),
          raw<float>({1.00390625f, 1.01171875f, -0.0f, std::numeric_limits<float>::quiet_NaN()})));
  EXPECT_EQ(matrix.values[0].bits, 0x3F80);
  EXPECT_EQ(matrix.values[1].bits, 0x3F82);
  EXPECT_EQ(matrix.values[2].bits, 0x8000);
  EXPECT_EQ(matrix.values[3].bits & 0x7FC0, 0x7FC0);
}

TEST(Npy, Bfloat16IsKeptToTheBit) {
  for (const char* descr : {"<V2", "|V2"}) {
    const auto matrix = parse(
        npy(dictionary(descr, "(2, 2)"), raw<std::uint16_t>({0x3F80, 0x0001, 0x7FC1, 0x8000})));
    EXPECT_EQ(matrix.values, (std::vector<Bf16>{{0x3F80}, {0x0001}, {0x7FC1}, {0x8000}}));
  }
}

TEST(Npy, FortranOrderIsTurned) {
  // [[0 1 2] [3 4 5]] column by column.
  const auto flat = parse(npy(dictionary("<f4", "(2, 3)", "True"), raw<float>({0, 3, 1, 4, 2, 5})));
  EXPECT_EQ(floats(flat), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  // Element (a, b, c) of [2, 2, 3] holds 6a + 3b + c; the first index runs fastest in the file.
  const auto folded = parse(npy(dictionary("<f4", "(2, 2, 3)", "True"),
                                raw<float>({0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11})));
  EXPECT_EQ(folded.rows, 4);
  EXPECT_EQ(folded.cols, 3);
  EXPECT_EQ(floats(folded), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST(Npy, ShapesFoldIntoRows) {
  EXPECT_EQ(parse(npy(dictionary("<f4", "(3,)"), raw<float>({1, 2, 3}))).rows, 1);
  const auto cube = parse(npy(dictionary("<f4", "(2, 1, 2)"), raw<float>({1, 2, 3, 4})));
  EXPECT_EQ(cube.rows, 2);
  EXPECT_EQ(cube.cols, 2);
  const auto none = parse(npy(dictionary("<f4", "(0, 8)", "True"), ""));
  EXPECT_EQ(none.rows, 0);
  EXPECT_EQ(none.cols, 8);
  EXPECT_TRUE(none.values.empty());
}

TEST(Npy, DataAtAnOddAddressIsReadRight) {
  std::string text = dictionary("<f4", "(1, 2)");
  for (int pad = 0; pad < 4; ++pad, text.insert(text.begin(), ' ')) {
    EXPECT_EQ(floats(parse(npy(text, raw<float>({1.5f, -2.0f})))),
              (std::vector<float>{1.5f, -2.0f}));
  }
}

TEST(Npy, OtherDtypesAreNamedWithShape) {
  for (const std::string descr : {"<f8", ">f4", "<f2", "<i4", "<c8", "|u1"}) {
    expect_refused(npy(dictionary(descr, "(2, 3)"), ""), {descr, "[2, 3]", "<f4", "<V2"});
  }
  expect_refused(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "1234"),
                 {"structured"});
}

TEST(Npy, SizeMustBeWhatTheShapeSays) {
  expect_refused(npy(dictionary("<f4", "(2, 3)"), std::string(20, '\0')),
                 {"[2, 3]", "needs 24 bytes", "has 20"});
  expect_refused(npy(dictionary("<f4", "(2, 3)"), std::string(25, '\0')),
                 {"needs 24 bytes", "has 25"});
  expect_refused(npy(dictionary("<f4", "(4294967296, 4294967296)"), ""), {"overflows"});
  expect_refused(npy(dictionary("<f4", "(1099511627776, 4)"), "1234"), {"17592186044416", "has 4"});
  expect_refused(npy(dictionary("<f4", "()"), "1234"), {"a single number"});
}

TEST(Npy, BrokenHeadersAreRefused) {
  expect_refused("", {"empty"});
  expect_refused("PK\x03\x04", {"zip archive"});
  expect_refused("hello, world", {"x93NUMPY"});
  expect_refused("\x93NUMPY", {"cut short"});
  expect_refused(std::string("\x93NUMPY\x01\x00\x05", 9), {"cut short"});
  expect_refused(std::string("\x93NUMPY\x04\x00\x00\x00\x00\x00", 12), {"version 4.0"});
  expect_refused(std::string("\x93NUMPY\x01\x00\x70\x00{}", 12), {"112 bytes long", "2 follow"});
  expect_refused(std::string("\x93NUMPY\x02\x00\xFF\xFF\xFF\xFF", 12), {"4294967295", "limit"});
  expect_refused(npy("{}", ""), {"lacks 'descr'"});
  expect_refused(npy("{'descr': '<f4', 'shape': (1,)}", "1234"), {"lacks 'fortran_order'"});
  expect_refused(npy("{'descr': '<f4', 'descr': '<f4'}", ""), {"duplicate key 'descr'"});
  expect_refused(npy("{'color': 'red'}", ""), {"unknown key 'color'"});
  expect_refused(npy("{'descr': '<f4", ""), {"a string"});
  expect_refused(npy(dictionary("<f4", "(1,)", "1"), "1234"), {"True or False"});
  expect_refused(npy(dictionary("<f4", "(-1,)"), ""), {"a dimension"});
  expect_refused(npy(dictionary("<f4", "(99999999999999999999,)"), ""), {"a dimension"});
  expect_refused(npy(dictionary("<f4", "(1 2)"), ""), {"expected ')'"});
  expect_refused(npy(dictionary("<f4", "(1,)") + "x", "1234"), {"the end of the header"});
}

TEST(MatrixFile, WhatIsWrittenIsRead) {
  const TempDir dir;
  const Bf16Matrix matrix{2, 3, {{0x3F80}, {0x0001}, {0xFF80}, {0x8000}, {0x7F7F}, {0x4049}}};
  for (const char* name : {"m.npy", "m.safetensors"}) {
    write_matrix(dir / name, matrix, "y");
    for (const char* tensor : {"", "y"}) {
      const Bf16Matrix got = read_matrix(dir / name, tensor);
      EXPECT_EQ(got.rows, 2) << name;
      EXPECT_EQ(got.cols, 3) << name;
      EXPECT_EQ(got.values, matrix.values) << name;
    }
  }
  EXPECT_EQ(dir.listing().size(), 2u);
}

TEST(MatrixFile, LargeMatrixSurvivesWritingInPieces) {
  const TempDir dir;
  Bf16Matrix matrix{1000, 600, {}};
  for (int i = 0; i < 600'000; ++i) matrix.values.push_back(to_bf16(static_cast<float>(i % 251)));
  write_matrix(dir / "m.npy", matrix, "");
  EXPECT_EQ(read_matrix(dir / "m.npy", "").values, matrix.values);
}

TEST(MatrixFile, EmptyMatrixIsWrittenAndRead) {
  const TempDir dir;
  for (const char* name : {"m.npy", "m.safetensors"}) {
    write_matrix(dir / name, Bf16Matrix{0, 16, {}}, "y");
    const Bf16Matrix got = read_matrix(dir / name, "");
    EXPECT_EQ(got.rows, 0);
    EXPECT_EQ(got.cols, 16);
  }
}

TEST(MatrixFile, SafetensorsAreChosenByNameAndNamedInErrors) {
  const TempDir dir;
  const std::array<float, 2> values{1.0f, 2.0f};
  const auto data = std::as_bytes(std::span(values));
  const std::array<TensorToWrite, 3> tensors{TensorToWrite{"a", DType::kF32, {2}, data},
                                             TensorToWrite{"b", DType::kF32, {2, 1}, data},
                                             TensorToWrite{"q", DType::kF8E4m3, {8}, data}};
  const auto path = dir / "t.safetensors";
  write_safetensors(path, tensors);
  EXPECT_EQ(read_matrix(path, "a").rows, 1);
  EXPECT_EQ(read_matrix(path, "b").rows, 2);
  expect_error(ErrorCode::kFormat, {"t.safetensors", "3 tensors", "'a', 'b', 'q'"},
               [&] { read_matrix(path, ""); });
  expect_error(ErrorCode::kFormat, {"t.safetensors", "no tensor 'c'", "'a', 'b', 'q'"},
               [&] { read_matrix(path, "c"); });
  expect_error(ErrorCode::kFormat, {"t.safetensors", "'q'", "F8_E4M3", "[8]", "F32 or BF16"},
               [&] { read_matrix(path, "q"); });
}

TEST(MatrixFile, BadArgumentsAndSystemErrorsNameTheFile) {
  const TempDir dir;
  expect_error(ErrorCode::kInvalidArgument, {"m.txt", ".npy or .safetensors"},
               [&] { read_matrix(dir / "m.txt", ""); });
  expect_error(ErrorCode::kInvalidArgument, {"m.npy", "[2, 2]", "3 values"}, [&] {
    write_matrix(dir / "m.npy", Bf16Matrix{2, 2, std::vector<Bf16>(3)}, "");
  });
  expect_error(ErrorCode::kIo, {"none.npy", "No such file"},
               [&] { read_matrix(dir / "none.npy", ""); });
  std::filesystem::create_directory(dir / "d.npy");
  expect_error(ErrorCode::kIo, {"d.npy", "a directory"}, [&] { read_matrix(dir / "d.npy", ""); });
  write_file(dir / "secret.npy", npy(dictionary("<f4", "(1,)"), "1234"));
  ASSERT_EQ(::chmod((dir / "secret.npy").c_str(), 0), 0);
  const test::Unprivileged unprivileged;
  expect_error(ErrorCode::kIo, {"secret.npy", "Permission denied"},
               [&] { read_matrix(dir / "secret.npy", ""); });
}

}  // namespace
}  // namespace rowband
