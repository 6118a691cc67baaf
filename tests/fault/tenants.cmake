sparsed_attack(tenants DEPS sparsed_client fmt::fmt)
