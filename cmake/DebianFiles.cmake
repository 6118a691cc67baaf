# Run by CPack for the .deb packages, once their files are in the folders from which they are packed: adds
# what only Debian's packages have. The configuration file in /etc, which packages may not install by
# CMake; changelogs; licences, also of what the C library has inside; manual pages, compressed.
set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY})

# Folders by component or group, and the packages that are made of them.
set(folders server client c_interface measurement devel)
set(packages sparsed sparsectl libsparsed-client1 sparsed-bench libsparsed-dev)
# Debian's packages whose code is in files of ours.
set(compiled_in libabsl-dev libeigen3-dev libfmt-dev libhwy-dev)
set(linked_in libc-ares-dev libgrpc-dev liblzma-dev libminizip-dev libprotobuf-dev libre2-dev libssl-dev
  libzstd-dev zlib1g-dev)

# put(SOURCE FOLDER NAME): a copy of a file. Not by file(INSTALL), which obeys DESTDIR.
function(put source folder name)
  file(MAKE_DIRECTORY ${folder})
  file(COPY_FILE ${source} ${folder}/${name})
  file(CHMOD ${folder}/${name} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endfunction()

foreach(folder package IN ZIP_LISTS folders packages)
  if(NOT IS_DIRECTORY ${root}/${folder})
    continue()
  endif()
  set(documents ${root}/${folder}/usr/share/doc/${package})
  put(${CPACK_SPARSED_SOURCE}/LICENSE ${documents} copyright)
  put(${CPACK_SPARSED_SOURCE}/CHANGELOG.md ${documents} changelog)
  execute_process(COMMAND gzip -9nf ${documents}/changelog COMMAND_ERROR_IS_FATAL ANY)
  set(inside ${compiled_in})
  if(package STREQUAL libsparsed-client1)
    list(APPEND inside ${linked_in})
  endif()
  foreach(name ${inside})
    if(EXISTS /usr/share/doc/${name}/copyright)
      put(/usr/share/doc/${name}/copyright ${documents}/notices ${name})
    endif()
  endforeach()
  foreach(licence ${CPACK_SPARSED_CUDA_LICENCE})
    put(${licence} ${documents}/notices cuda-runtime)
  endforeach()
  file(GLOB pages ${root}/${folder}/usr/share/man/man*/*.[1-8])
  if(pages)
    execute_process(COMMAND gzip -9nf ${pages} COMMAND_ERROR_IS_FATAL ANY)
  endif()
endforeach()

# LICENSE is there as copyright.
file(REMOVE ${root}/server/usr/share/doc/sparsed/LICENSE)
put(${CPACK_SPARSED_SOURCE}/deploy/sparsed.yaml ${root}/server/etc/sparsed sparsed.yaml)
