"""ImageNet for ResNet-50: many small JPEG records in large shards."""
