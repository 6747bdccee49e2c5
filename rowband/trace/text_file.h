// A text file that appears whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>

namespace rowband {

// Makes `text` the content of `path`. When it throws Error(kIo), what stood there before still
// does.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace rowband
