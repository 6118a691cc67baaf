sparsed_attack(idle DEPS sparsed_proto gRPC::grpc++)
