# Several GPUs beside one, in the engine alone.
add_executable(bench_cards cards.cc)
target_link_libraries(bench_cards PRIVATE sparsed_engine CLI11::CLI11 nlohmann_json::nlohmann_json)
