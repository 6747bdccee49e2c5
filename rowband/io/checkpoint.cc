#include "rowband/io/checkpoint.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <system_error>

#include "rowband/base/fail.h"
#include "rowband/io/checkpoint_json.h"
#include "rowband/io/file_error.h"
#include "rowband/io/near_names.h"
#include "rowband/io/quote_name.h"

namespace rowband {
namespace fs = std::filesystem;

struct Checkpoint::State {
  fs::path path;
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  std::map<std::string, std::size_t, std::less<>> file_of;  // by tensor name

  void open_file();
  void open_shards(std::vector<std::string>& notes);

  // Null when there is no such tensor.
  const SafetensorsFile* file_with(std::string_view name) const {
    const auto found = file_of.find(name);
    return found == file_of.end() ? nullptr : files[found->second].get();
  }
};

namespace {

constexpr std::string_view kUsualIndex = "model.safetensors.index.json";

// Names of the regular files of a directory, sorted.
std::vector<std::string> list_files(const fs::path& directory) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entries(directory, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::error_code gone;  // an entry that vanishes meanwhile is not there
    if (entries->is_regular_file(gone)) names.push_back(entries->path().filename().string());
  }
  if (error) fail_io(directory, "list the directory", error.value());
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> ending_in(const std::vector<std::string>& names, std::string_view ending) {
  std::vector<std::string> found;
  std::ranges::copy_if(names, std::back_inserter(found),
                       [&](const std::string& name) { return name.ends_with(ending); });
  return found;
}

// The file that stands for a directory: see Checkpoint::open.
fs::path choose_file(const fs::path& directory) {
  const std::vector<std::string> names = list_files(directory);
  if (std::ranges::binary_search(names, kUsualIndex)) return directory / kUsualIndex;
  for (const char* ending : {".safetensors.index.json", ".index.json", ".safetensors"}) {
    const std::vector<std::string> found = ending_in(names, ending);
    if (found.size() == 1) return directory / found.front();
    if (!found.empty()) {
      fail(ErrorCode::kFormat, "{}: {} files end in {}, name the one to open: {}",
           directory.string(), found.size(), ending, fmt::join(found, ", "));
    }
  }
  fail(ErrorCode::kFormat, "{}: the directory holds neither *.safetensors nor *.index.json",
       directory.string());
}

fs::path directory_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

void require_shards(const fs::path& index, const std::set<std::string>& shards) {
  std::vector<std::string> missing;
  for (const std::string& shard : shards) {
    std::error_code error;
    if (!fs::exists(directory_of(index) / shard, error)) missing.push_back(shard);
  }
  if (!missing.empty()) {
    fail(ErrorCode::kIo, "{}: {} of its {} files are missing (download not complete?): {}",
         index.string(), missing.size(), shards.size(), fmt::join(missing, ", "));
  }
}

}  // namespace

void Checkpoint::State::open_file() {
  files.push_back(SafetensorsFile::open(path));
  for (const TensorInfo& tensor : files.front()->tensors()) file_of.emplace(tensor.name, 0);
}

void Checkpoint::State::open_shards(std::vector<std::string>& notes) {
  const auto weight_map = read_weight_map(path);
  std::set<std::string> shards;
  for (const auto& entry : weight_map) shards.insert(entry.second);
  require_shards(path, shards);
  std::map<std::string, std::size_t> position;
  for (const std::string& shard : shards) {
    position.emplace(shard, files.size());
    files.push_back(SafetensorsFile::open(directory_of(path) / shard));
  }
  for (const auto& [tensor, shard] : weight_map) file_of.emplace(tensor, position.at(shard));
  for (const auto& name : ending_in(list_files(directory_of(path)), ".safetensors")) {
    if (!shards.contains(name)) {
      notes.push_back(
          fmt::format("ignored {}: {} does not list it", name, path.filename().string()));
    }
  }
}

Checkpoint Checkpoint::open(const fs::path& path) {
  std::error_code ignored;  // what cannot be asked cannot be opened either, and says why then
  auto state = std::make_shared<State>();
  state->path = fs::is_directory(path, ignored) ? choose_file(path) : path;
  Checkpoint checkpoint;
  if (state->path.extension() == ".json") {
    state->open_shards(checkpoint.notes_);
  } else {
    state->open_file();
  }
  checkpoint.note_block_size(directory_of(state->path));
  checkpoint.state_ = std::move(state);
  return checkpoint;
}

void Checkpoint::note_block_size(const fs::path& directory) {
  const fs::path config = directory / "config.json";
  std::error_code error;
  const bool there = fs::exists(config, error);
  if (error) fail_io(config, "look for it", error.value());
  if (!there) {
    notes_.push_back("no config.json beside the checkpoint: weight blocks of 128x128 are assumed");
  } else if (const auto stated = read_weight_block_size(config)) {
    block_size_ = *stated;
  } else {
    notes_.push_back(
        "config.json states no weight_block_size: weight blocks of 128x128 are assumed");
  }
}

TensorInfo Checkpoint::tensor(std::string_view name) const {
  const SafetensorsFile* file = state_->file_with(name);
  if (file == nullptr) {
    const auto near = near_names(name, names(), 3);
    fail(ErrorCode::kFormat, "{}: no tensor {}{}", state_->path.string(), quote_name(name),
         near.empty() ? "" : fmt::format("; near it: {}", fmt::join(near, ", ")));
  }
  const TensorInfo* tensor = file->find(name);
  if (tensor == nullptr) {
    fail(ErrorCode::kFormat, "{}: sends tensor {} to {}, which does not hold it",
         state_->path.string(), quote_name(name), file->name());
  }
  return *tensor;
}

bool Checkpoint::contains(std::string_view name) const {
  return state_->file_with(name) != nullptr;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(state_->file_of.size());
  for (const auto& entry : state_->file_of) names.push_back(entry.first);
  return names;
}

std::string Checkpoint::file_of(std::string_view name) const {
  const SafetensorsFile* file = state_->file_with(name);
  return file == nullptr ? state_->path.string() : file->name();
}

}  // namespace rowband
