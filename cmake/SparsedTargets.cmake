# What every target of ours shares: warnings as errors, include root, sanitizers.

include(CheckCXXCompilerFlag)
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(sparsed_options INTERFACE)
target_compile_options(sparsed_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Werror>)
# Of base/mutex.h, where the compiler knows of it; everywhere else clang-tidy does (.clang-tidy).
# Members that only the build with CUDA uses are no mistake.
target_compile_options(sparsed_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety;-Wno-unused-private-field>)
target_include_directories(sparsed_options INTERFACE ${PROJECT_SOURCE_DIR})
if(SPARSED_SANITIZER)
  target_compile_options(sparsed_options INTERFACE
    -fsanitize=${SPARSED_SANITIZER} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_link_options(sparsed_options INTERFACE -fsanitize=${SPARSED_SANITIZER})
endif()

# Headers of other libraries take most of the time of most files. A build that happens once, from
# nothing, parses them once for each target (deploy/quickstart); for all others ccache is better.
option(SPARSED_PRECOMPILE "Precompile the headers of other libraries" OFF)

# sparsed_precompile(NAME HEADERS...): what many files of the target include.
function(sparsed_precompile name)
  if(SPARSED_PRECOMPILE)
    target_precompile_headers(${name} PRIVATE ${ARGN})
  endif()
endfunction()

# sparsed_library(NAME SOURCES... [SHARED] [DEPS libs...]): a library of one module; static, unless many
# programs that travel together share it.
function(sparsed_library name)
  cmake_parse_arguments(ARG "SHARED" "" "DEPS" ${ARGN})
  if(ARG_SHARED)
    add_library(${name} SHARED ${ARG_UNPARSED_ARGUMENTS})
    sparsed_install_library(${name} server)
    # Programs of other projects link with it alone.
    list(TRANSFORM ARG_DEPS REPLACE "(.+)" "$<BUILD_INTERFACE:\\1>")
  else()
    add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  endif()
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:sparsed_options> ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()

# sparsed_test(NAME SOURCES... [STAYS] [DEPS libs...] [LABELS l...]): a GoogleTest program run by ctest as
# NAME. Its folder in tests/ is a label too: ctest -L kernels. Those in tests/gpu are packed, to run
# elsewhere, but for what STAYS.
function(sparsed_test name)
  cmake_parse_arguments(ARG "STAYS" "" "DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE sparsed_options ${ARG_DEPS} sparsed_test_main)
  target_compile_definitions(${name} PRIVATE
    SPARSED_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
    SPARSED_SHARED_DATA="${PROJECT_SOURCE_DIR}/../shared/data")
  add_test(NAME ${name} COMMAND ${name})
  file(RELATIVE_PATH area ${PROJECT_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  string(REGEX REPLACE "/.*" "" area "${area}")
  set(labels ${area} ${ARG_LABELS})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS "${labels}" SKIP_RETURN_CODE 77)
  if(area STREQUAL gpu AND NOT ARG_STAYS)
    sparsed_install_program(${name} measurement)
  endif()
endfunction()
