// "Did you mean": the names closest to one that does not exist.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rowband {

// At most `most` of `names`, closest first by edit distance, none that differs in more than half of
// its letters.
std::vector<std::string> near_names(std::string_view wanted, std::span<const std::string> names,
                                    std::size_t most);

}  // namespace rowband
