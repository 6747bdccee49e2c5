# `cmake --install` and find_package(rowband).
