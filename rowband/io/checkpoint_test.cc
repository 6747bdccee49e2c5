#include "rowband/io/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>

#include "rowband/io/checkpoint_test_support.h"
#include "rowband/io/near_names.h"

namespace rowband {
namespace {

using test::CheckpointFile;
using test::expect_error;
using test::TempDir;
using test::write_file;

constexpr const char* kIndex = "model.safetensors.index.json";

// A one-row fp32 tensor [1] of this value.
void write_shard(const std::filesystem::path& path, const std::string& name, float value) {
  CheckpointFile().add<float>(name, DType::kF32, {1}, {value}).write(path);
}

float value_of(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo tensor = checkpoint.tensor(name);
  float value = 0;
  std::memcpy(&value, tensor.data.data(), sizeof(value));
  return value;
}

bool has_note(const Checkpoint& checkpoint, const std::vector<std::string>& words) {
  return std::ranges::any_of(checkpoint.notes(), [&](const std::string& note) {
    return std::ranges::all_of(
        words, [&](const std::string& word) { return note.find(word) != std::string::npos; });
  });
}

void write_two_shards(const TempDir& dir) {
  write_shard(dir / "model-1.safetensors", "a", 1.0f);
  write_shard(dir / "model-2.safetensors", "b", 2.0f);
  write_file(dir / kIndex,
             R"({"metadata":{"total_size":8},
                 "weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})");
}

TEST(Checkpoint, OpensFileIndexAndDirectory) {
  const TempDir dir;
  write_two_shards(dir);
  for (const auto& path : {dir.path(), dir / kIndex}) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(value_of(checkpoint, "a"), 1.0f);
    EXPECT_EQ(value_of(checkpoint, "b"), 2.0f);
    EXPECT_TRUE(checkpoint.file_of("b").ends_with("model-2.safetensors"));
  }
  const Checkpoint single = Checkpoint::open(dir / "model-2.safetensors");
  EXPECT_EQ(single.names(), std::vector<std::string>{"b"});
  EXPECT_FALSE(single.contains("a"));
}

TEST(Checkpoint, OpensPathsWithoutADirectory) {
  const TempDir dir;
  write_shard(dir / "only.safetensors", "a", 1.0f);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  EXPECT_EQ(value_of(Checkpoint::open("only.safetensors"), "a"), 1.0f);
  EXPECT_EQ(value_of(Checkpoint::open("."), "a"), 1.0f);
  std::filesystem::current_path(before);
}

TEST(Checkpoint, DataOutlivesTheObjectThroughACopy) {
  const TempDir dir;
  write_shard(dir / "only.safetensors", "a", 3.0f);
  auto original = std::make_unique<Checkpoint>(Checkpoint::open(dir.path()));
  const Checkpoint copy = *original;
  original.reset();
  EXPECT_EQ(value_of(copy, "a"), 3.0f);
}

TEST(Checkpoint, DirectoryMustSayWhichFileIsMeant) {
  const TempDir dir;
  expect_error(ErrorCode::kFormat, {dir.path().string(), "neither"},
               [&] { Checkpoint::open(dir.path()); });
  write_shard(dir / "one.safetensors", "a", 1.0f);
  write_shard(dir / "two.safetensors", "a", 2.0f);
  expect_error(ErrorCode::kFormat, {"2 files", "one.safetensors, two.safetensors"},
               [&] { Checkpoint::open(dir.path()); });
  write_file(dir / "x.safetensors.index.json", R"({"weight_map":{"a":"two.safetensors"}})");
  write_file(dir / "pytorch_model.bin.index.json", R"({"weight_map":{"a":"pytorch_model.bin"}})");
  EXPECT_EQ(value_of(Checkpoint::open(dir.path()), "a"), 2.0f);
}

TEST(Checkpoint, F12_MissingShardIsNamed) {
  const TempDir dir;
  write_two_shards(dir);
  write_file(dir / kIndex, R"({"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors",
                                             "c":"model-3.safetensors"}})");
  expect_error(ErrorCode::kIo, {kIndex, "1 of its 3 files", "model-3.safetensors"},
               [&] { Checkpoint::open(dir.path()); });
}

TEST(Checkpoint, F14_IndexSendsTensorToAShardThatDoesNotHoldIt) {
  const TempDir dir;
  write_two_shards(dir);
  write_file(dir / kIndex,
             R"({"weight_map":{"a":"model-2.safetensors","b":"model-2.safetensors"}})");
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_EQ(value_of(checkpoint, "b"), 2.0f);
  expect_error(ErrorCode::kFormat, {kIndex, "'a'", "model-2.safetensors", "does not hold it"},
               [&] { checkpoint.tensor("a"); });
}

TEST(Checkpoint, F15_StrayFileIsIgnoredAndMentioned) {
  const TempDir dir;
  write_two_shards(dir);
  write_shard(dir / "model.safetensors", "a", 99.0f);
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_EQ(value_of(checkpoint, "a"), 1.0f);
  EXPECT_TRUE(has_note(checkpoint, {"ignored model.safetensors", kIndex}));
  EXPECT_FALSE(has_note(checkpoint, {"ignored model-1.safetensors"}));
}

TEST(Checkpoint, F15_StaleIndexListsEveryMissingFile) {
  const TempDir dir;
  std::string map;
  std::vector<std::string> words{"15 of its 30 files"};
  for (int i = 10; i < 40; ++i) {
    const std::string file = "model-" + std::to_string(i) + ".safetensors";
    map += (map.empty() ? "\"" : ",\"") + std::to_string(i) + "\":\"" + file + "\"";
    if (i % 2 == 0) {
      write_shard(dir / file, std::to_string(i), 1.0f);
    } else {
      words.push_back(file);
    }
  }
  write_file(dir / kIndex, "{\"weight_map\":{" + map + "}}");
  expect_error(ErrorCode::kIo, words, [&] { Checkpoint::open(dir.path()); });
}

TEST(Checkpoint, F02_ShardThatIsAnLfsPointerIsNamed) {
  const TempDir dir;
  write_two_shards(dir);
  write_file(dir / "model-2.safetensors", "version https://git-lfs.github.com/spec/v1\noid ...\n");
  expect_error(ErrorCode::kFormat, {"model-2.safetensors", "git-lfs pointer"},
               [&] { Checkpoint::open(dir.path()); });
}

TEST(Checkpoint, BrokenIndexesAreRefused) {
  const TempDir dir;
  const auto refused = [&](const std::string& text, std::vector<std::string> words) {
    write_file(dir / kIndex, text);
    words.push_back(kIndex);
    expect_error(ErrorCode::kFormat, words, [&] { Checkpoint::open(dir.path()); });
  };
  refused("", {"not valid JSON"});
  refused("version https://git-lfs.github.com/spec/v1\n", {"git-lfs pointer"});
  refused("[]", {"holds array"});
  refused("{}", {"weight_map"});
  refused(R"({"weight_map":[]})", {"weight_map"});
  refused(R"({"weight_map":{"a":1}})", {"'a'", "'1'"});
  refused(R"({"weight_map":{"a":""}})", {"'a'"});
  refused(R"({"weight_map":{"a":"/etc/passwd"}})", {"'a'", "/etc/passwd"});
  refused(R"({"weight_map":{"a":"../x.safetensors"}})", {"'a'", "../x.safetensors"});
  refused(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})", {"duplicate key 'a'"});
  refused(std::string("{\"weight_map\":{}}\0{", 18), {"NUL byte at byte 17"});
}

TEST(Checkpoint, UnknownTensorSuggestsNearNames) {
  const TempDir dir;
  CheckpointFile()
      .add<float>("model.layers.0.mlp.down_proj.weight", DType::kF32, {1}, {1})
      .add<float>("model.layers.1.mlp.down_proj.weight", DType::kF32, {1}, {1})
      .add<float>("lm_head", DType::kF32, {1}, {1})
      .write(dir / "m.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  expect_error(ErrorCode::kFormat,
               {"m.safetensors", "no tensor 'model.layers.0.mlp.down_prj.weight'",
                "near it: model.layers.0.mlp.down_proj.weight"},
               [&] { checkpoint.tensor("model.layers.0.mlp.down_prj.weight"); });
  expect_error(ErrorCode::kFormat, {"no tensor 'q'"}, [&] { checkpoint.tensor("q"); });
}

TEST(Checkpoint, BlockSizeComesFromTheConfigAndNowhereElse) {
  const TempDir dir;
  write_shard(dir / "m.safetensors", "a", 1.0f);
  const std::pair<std::int64_t, std::int64_t> usual{128, 128};
  EXPECT_EQ(Checkpoint::open(dir.path()).weight_block_size(), usual);
  EXPECT_TRUE(has_note(Checkpoint::open(dir.path()), {"no config.json", "128x128"}));
  for (const char* silent : {"{}", R"({"quantization_config":{}})",
                             R"({"quantization_config":{"weight_block_size":null}})"}) {
    write_file(dir / "config.json", silent);
    EXPECT_EQ(Checkpoint::open(dir.path()).weight_block_size(), usual);
    EXPECT_TRUE(has_note(Checkpoint::open(dir.path()), {"states no weight_block_size"}));
  }
  write_file(dir / "config.json", R"({"quantization_config":{"weight_block_size":[64,32]}})");
  EXPECT_EQ(Checkpoint::open(dir / "m.safetensors").weight_block_size(),
            (std::pair<std::int64_t, std::int64_t>{64, 32}));
  EXPECT_TRUE(Checkpoint::open(dir.path()).notes().empty());
  for (const char* wrong : {"128", "[128]", "[128,0]", "[128,-1]", "[128,1.5]", "\"128\"",
                            "[128,18446744073709551615]"}) {
    write_file(dir / "config.json",
               std::string(R"({"quantization_config":{"weight_block_size":)") + wrong + "}}");
    expect_error(ErrorCode::kFormat, {"config.json", "weight_block_size", "two positive numbers"},
                 [&] { Checkpoint::open(dir.path()); });
  }
}

TEST(Checkpoint, SystemErrorsNameTheFile) {
  const TempDir dir;
  expect_error(ErrorCode::kIo, {"none.safetensors", "No such file"},
               [&] { Checkpoint::open(dir / "none.safetensors"); });
  expect_error(ErrorCode::kIo, {"none.json", "No such file"},
               [&] { Checkpoint::open(dir / "none.json"); });
  write_two_shards(dir);
  std::filesystem::remove(dir / "model-1.safetensors");
  std::filesystem::create_directory(dir / "model-1.safetensors");
  expect_error(ErrorCode::kIo, {"model-1.safetensors", "a directory"},
               [&] { Checkpoint::open(dir.path()); });
  ASSERT_EQ(::chmod(dir.path().c_str(), 0), 0);
  {
    const test::Unprivileged unprivileged;
    expect_error(ErrorCode::kIo, {dir.path().string(), "Permission denied"},
                 [&] { Checkpoint::open(dir.path()); });
  }
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
}

TEST(NearNames, ClosestFirstAndNothingFar) {
  const std::vector<std::string> names{"weights", "weight", "height", "bias", "weigh"};
  EXPECT_EQ(near_names("weight", names, 3),
            (std::vector<std::string>{"weight", "height", "weigh"}));
  EXPECT_TRUE(near_names("qqqq", names, 3).empty());
  EXPECT_TRUE(near_names("weight", {}, 3).empty());
}

}  // namespace
}  // namespace rowband
