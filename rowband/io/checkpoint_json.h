// The JSON files of a checkpoint: its shard index and its config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rowband {

// "weight_map" of an index: tensor name and file name, sorted by tensor. File names are relative
// and stay inside the index's directory. Throws Error(kFormat) naming file and entry, Error(kIo).
std::vector<std::pair<std::string, std::string>> read_weight_map(
    const std::filesystem::path& index);

// quantization_config.weight_block_size of a config.json; nothing when it does not say (or says
// null). Throws Error(kFormat) when it says something that is no pair of positive numbers.
std::optional<std::pair<std::int64_t, std::int64_t>> read_weight_block_size(
    const std::filesystem::path& config);

}  // namespace rowband
