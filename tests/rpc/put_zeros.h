// A buffer that is there, whatever is in it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "sparsed/v1/buffers.grpc.pb.h"

namespace sparsed::test {

/// Puts one float, 0, under the name.
inline grpc::Status PutZeros(v1::Buffers::Stub& buffers, grpc::ClientContext& context,
                             const std::string& name) {
  v1::BufferInfo info;
  const auto writer = buffers.Put(&context, &info);
  v1::PutBufferRequest request;
  v1::PutBufferHeader& header = *request.mutable_header();
  header.set_name(name);
  header.set_zeros(true);
  header.mutable_shape()->set_rows(1);
  header.mutable_shape()->set_cols(1);
  header.mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
  writer->Write(request);
  writer->WritesDone();
  return writer->Finish();
}

}  // namespace sparsed::test
