// What a bug report needs to know: the sections of `rowband doctor`. Each works when what it asks
// for is missing, and says so.
#pragma once

#include <nlohmann/json.hpp>

namespace rowband::cli {

nlohmann::ordered_json describe_machine();
nlohmann::ordered_json describe_limits();
nlohmann::ordered_json describe_engine();
// `measured`: how fast bytes move between each pair, too, which takes part of a second a pair.
nlohmann::ordered_json describe_gpus(bool measured);
nlohmann::ordered_json describe_build();
nlohmann::ordered_json describe_libraries();
nlohmann::ordered_json describe_environment();

}  // namespace rowband::cli
