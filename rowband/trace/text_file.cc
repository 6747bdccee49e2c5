#include "rowband/trace/text_file.h"

#include <span>

#include "rowband/io/atomic_file.h"

namespace rowband {

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace rowband
