"""The encoder: splits, ranker, layers, and how they run in training and inference.

Where the equations of the paper (Avey-B, sections 3 and 4) are:

    section 3.1    MaxSim of two splits         kernels.host_maxsim.score_blocks
    section 3.1    the k best earlier splits    network.host_ranker.choose
    section 3.1    their weights                network.ranker.Ranker.weights
    equation 8     compressor                   network.ranker.Ranker.compress
    equation 1     enricher                     kernels.positionwise.enrich
    equation 4     static contextualizer        kernels.mixing.static_mix_reference
    equations 5-7  dynamic contextualizer       kernels.mixing.dynamic_mix_reference
    equation 3     fuser                        kernels.positionwise.fuse

`layers.AveyBLayer.forward` puts 1, 3 and 4 or 5 to 7 together, `split_encoder.SplitEncoder` the
whole. Beyond the printed equations there are an RMSNorm in front of 1, the gate of equation 2 in 4
and in 7, one bias a position in 4 and 7, a bias in 3, and a residual in 8 (docs/differences.md).
Equation 2 itself is Avey's contextualizer, `family.avey.AveyContextualizer`.

A GPU computes the same by Triton kernels, which `kernels.mixing.static_mix` and `dynamic_mix`,
`layers.run_fused` and the ranker choose. ONNX has weights of its own, `host_ranker.split_weights`.
`family.reference` has all of it in one file.
"""
