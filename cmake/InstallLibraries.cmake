# At install time: copies the shared libraries that `programs` load into `libraries_dir`, but for our
# `own_libraries`, which are installed with the programs, and the notices of everything that travels
# in the package into `notices_dir`. What every Linux with glibc has,
# C's and C++'s own libraries, stays behind; so does whatever is opened at run time: the GPU's driver,
# CUDA's libraries.
file(GET_RUNTIME_DEPENDENCIES
  EXECUTABLES ${programs}
  RESOLVED_DEPENDENCIES_VAR libraries
  PRE_EXCLUDE_REGEXES
    "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|stdc\\+\\+|gcc_s)\\.so")
foreach(name ${own_libraries})
  list(FILTER libraries EXCLUDE REGEX "/${name}$")
endforeach()
file(INSTALL ${libraries} DESTINATION "${CMAKE_INSTALL_PREFIX}/${libraries_dir}"
  TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN)

# Whose code is compiled into the programs, from headers and static libraries.
set(packages libabsl-dev libcli11-dev libgtest-dev nlohmann-json3-dev)
set(names "")
foreach(library ${libraries})
  file(REAL_PATH ${library} library)
  get_filename_component(name ${library} NAME)
  list(APPEND names ${name})
endforeach()
find_program(DPKG_QUERY dpkg-query)
if(DPKG_QUERY)
  # dpkg knows a file by the path that it was packed with, below /usr or not.
  list(TRANSFORM names PREPEND "*/" OUTPUT_VARIABLE patterns)
  execute_process(COMMAND ${DPKG_QUERY} --search ${patterns} OUTPUT_VARIABLE owners ERROR_QUIET)
endif()
foreach(name ${names})
  string(REGEX REPLACE "([.+])" "\\\\\\1" name_pattern ${name})
  if("\n${owners}" MATCHES "\n([^:, \n]+)[^\n]*/${name_pattern}\n")
    list(APPEND packages ${CMAKE_MATCH_1})
  else()
    message(WARNING "No package owns ${name}: add its licence's notice to the package by hand")
  endif()
endforeach()
list(REMOVE_DUPLICATES packages)
foreach(package ${packages})
  if(EXISTS /usr/share/doc/${package}/copyright)
    file(INSTALL /usr/share/doc/${package}/copyright
      DESTINATION "${CMAKE_INSTALL_PREFIX}/${notices_dir}" RENAME ${package})
  endif()
endforeach()
foreach(licence ${cuda_licence})
  file(INSTALL ${licence} DESTINATION "${CMAKE_INSTALL_PREFIX}/${notices_dir}" RENAME cuda-runtime)
endforeach()
