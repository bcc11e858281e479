"""Known layers: forward and backward of many clients at once, by formula.

known           which networks are stacks of known layers
formula         the gradient of such a network
basic           linear, convolution, flatten, and what all layers share
convolution     stacked convolutions by torch, and by Triton in `convolution_kernels`
residual        batch norm (by Triton in `normalisation_kernels`), the residual block, the mean over
                pixels
"""
